"""Only SQLite."""
