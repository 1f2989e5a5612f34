"""An MCP server with a tool for everything that can happen. Run as a program, it uses standard input and output."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from mcp_types import CallToolResult, ResourceLink, TextContent, ToolAnnotations
from pydantic import BaseModel, Field


class Order(BaseModel):
    order_id: str
    paid: bool


def make_shop() -> MCPServer:
    server = MCPServer("shop")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True))
    async def find_order(order_id: Annotated[str, Field(description="As on the receipt")]) -> Order:
        """Look an order up."""
        return Order(order_id=order_id, paid=True)

    @server.tool(structured_output=False)
    async def greet(name: str = "you") -> str:
        """Greet somebody."""
        return f"Hello, {name}!"

    @server.tool(structured_output=False)
    async def picture() -> list[Any]:
        """A picture, and a word about it."""
        return [Image(data=b"\x89PNG" * 3072, format="png"), "This is the shop."]

    @server.tool(structured_output=False)
    async def manual() -> CallToolResult:
        """Where the manual is."""
        link = ResourceLink(uri="shop://manual", name="manual", description="How it works", mime_type="text/plain")
        return CallToolResult(content=[link, TextContent(type="text", text='{"pages": 3}')])

    @server.tool()
    async def refuse() -> str:
        """Say no."""
        raise ValueError("We are closed on Mondays.")

    @server.tool()
    async def environment() -> dict[str, str]:
        """What this process has been given."""
        return dict(os.environ)

    @server.tool()
    async def place() -> dict[str, Any]:
        """Which process this is, and where."""
        return {"pid": os.getpid(), "cwd": str(Path.cwd())}

    @server.tool()
    async def count(to: int, ctx: Context[Any]) -> int:
        """Count, and report every step."""
        for step in range(1, to + 1):
            await ctx.report_progress(step, to, f"step {step}" if step > 1 else None)
        return to

    @server.tool()
    async def wait(started: str, cancelled: str) -> str:
        """Wait for ever. It makes the one file when it has begun, the other when it is cancelled."""
        try:
            await anyio.Path(started).touch()
            await anyio.sleep_forever()
        finally:
            Path(cancelled).touch()  # noqa: ASYNC240 - nothing can be awaited any more
        return "never"

    @server.tool(name="die/once", annotations=ToolAnnotations(idempotent_hint=True))
    def die_once(note: str) -> str:
        """End this process in the middle of a call, unless the file exists."""
        if Path(note).exists():
            return "alive"
        Path(note).touch()
        os._exit(3)

    @server.tool()
    async def ask(ctx: Context[Any]) -> str:
        """Ask the user something, which our side does not offer."""
        answer = await ctx.elicit("How many?", Order)
        return answer.action

    @server.tool()
    async def grow(ctx: Context[Any]) -> str:
        """Offer two tools more, one after the other."""
        for name in ("first_more", "second_more"):
            server.add_tool(lambda: "more", name=name, description="It came later.")
            await ctx.notify_tools_changed()
            await ctx.session.send_tool_list_changed()  # in the older protocol
        return "grown"

    return server


if __name__ == "__main__":
    make_shop().run()
