"""The operations service `hf.ops`: everything that operators can read and change.

The CLI, the HTTP API, the console and the MCP server call only this package. A task is a generator of steps
(`steps`), so that one implementation serves async callers (`hf.ops`) and blocking ones (`hf.ops.sync`); `service` lists all tasks.

- `plans`: bulk replays, discards and cancellations, stored and executed in batches.
- `queries`: deliveries, messages, requests, counts, throughput, search, metrics; secrets are redacted here.
- `resources`: queues, consumers, schedules, projectors, relays, webhooks, circuits, keys and tokens.
- `doctor`: health checks, each with a remedy. `maintenance`: pruning, the schema, workers and the audit log.

Every change is audited in its own transaction.
"""
