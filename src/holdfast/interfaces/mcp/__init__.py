"""MCP server for agents: read-only inspection, and replay of single dead letters."""
