"""Tools of MCP servers: `McpServer` says which server and how its tools are treated, `McpSource` connects to it.

    shop = McpServer(name="shop", command="shop-mcp", tool={"find_order": {"effect": "read", "timeout": 3}})
    async with McpSource(shop).open(changed) as tools:
        ...

`declaration` is what can be said about a server, `offer` makes tools of what a server lists, `results` makes values of
what it answers; all three are pure. `connection` is the only file that imports the SDK, and only once a source is
opened. `source` keeps one connection to each server, and makes a new one when it is lost.
"""

from .declaration import McpServer, McpTable
from .source import McpSource

__all__ = ["McpServer", "McpSource", "McpTable"]
