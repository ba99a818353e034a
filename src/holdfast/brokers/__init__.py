"""Brokers: consume records from streams, and send events to them. A record is acknowledged only after it is durable or done.

- `kafka`, `nats`, `rabbitmq`, `redis`: the adapters. Each has `connection`, `subscription`, `sender`, `record` and `diagnostics`, and
  the module of its public class (`topic`, `stream` or `queue`). `protocol` is their interface, `endpoint` what they share.
- `intake` fetches and acknowledges; `decoder` turns a record into a message; `inbox` stores messages, or unreadable records as
  dead letters; `retrying_store` waits for the database. `offsets` finds the offset that is safe to commit.
- `relay` sends events from the store as CloudEvents (`cloudevents`).

A record: fetched -> decoded -> stored with a delivery (or run directly) -> acknowledged. A failure releases it for redelivery.
"""
