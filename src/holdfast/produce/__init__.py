"""Producers: write events and jobs into the caller's transaction.

- `producer`: builds messages; binds a connection, registers declarations, writes and wakes workers.
- `commit`: calls a function after the caller's commit, for connections that have hooks.
- `aggregates`: events that SQLAlchemy objects raise, published by the flush that saves them.
- `immediate`: SQLite transactions that take the write lock at their start.
- `request_ids`: ASGI middleware that adds request ids to everything a request publishes and logs.

Nothing is buffered: a message commits and rolls back with the transaction that publishes it.
"""
