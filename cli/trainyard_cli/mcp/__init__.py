"""MCP server: a client of the server's API, for AI agents. Imported by `trainyard mcp` alone."""
