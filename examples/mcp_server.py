"""A small MCP server with two tools of a shop, which `mcp_tools.toml` starts. Any other MCP server will do as well.

pip install mcp
"""

from __future__ import annotations

from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

server = MCPServer("shop")

OrderId = Annotated[str, Field(description="The number on the receipt, e.g. A17.")]
orders = {"A17": "on its way", "A18": "being packed"}


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def find_order(order_id: OrderId) -> dict[str, str]:
    """How far an order is."""
    if order_id not in orders:
        raise ToolError(f"There is no order {order_id}.")
    return {"order_id": order_id, "status": orders[order_id]}


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
async def cancel_order(order_id: OrderId, context: Context[Any], caller: str = "") -> dict[str, str]:
    """Cancel an order that has not been sent yet."""
    await context.report_progress(1, 2, "Asking the warehouse.")
    if orders.get(order_id) != "being packed":
        raise ToolError(f"Order {order_id} cannot be cancelled any more.")
    del orders[order_id]
    return {"cancelled": order_id, "by": caller}


if __name__ == "__main__":
    server.run()
