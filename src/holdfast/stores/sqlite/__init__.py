"""The SQLite store, embedded and the default."""
