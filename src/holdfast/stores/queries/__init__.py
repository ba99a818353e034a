"""Read-only queries: deliveries, messages, counts, pages, search, traces, health."""
