"""The stores: messages and deliveries in SQLite or PostgreSQL.

An operation (`operation.py`) is a generator that yields named queries and receives rows. A dialect converts a query to
statements, and `connections.connection.run_on` runs them on a connection of the store or of the caller. The SQL is in
`postgres/statements` and `sqlite/statements`, with the same names and folders; the two stores never import each other.

    messages      publish, broker intake, registry, schedules, backfill, pruning
    deliveries    claim, settle, worker leases, deduplication
    queries       lists, pages, counts, search, traces, health
    admin         operator actions, bulk actions, plans, audit, tokens
    event_log     ordered log, reader positions, projector rebuilds, relays
    integrations  idempotency keys, circuit breakers, webhook endpoints
    connections   adapters for callers' connections
"""
