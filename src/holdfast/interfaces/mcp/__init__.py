"""MCP server for agents: read-only inspection, and replay of single dead letters.

The tools call the same operations as the other front ends and return the same JSON views. Secrets are redacted and
results are bounded. Tools that change something exist only with `--allow-actions`, and every change is audited.
"""
