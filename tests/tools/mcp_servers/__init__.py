"""MCP servers for the tests: programs of their own, written with the SDK."""
