"""Connects the packages below into what the workers and publishers of one app run.

The packages below (`engine`, `brokers`, `produce`, `outbound`, `projections`, `idempotency`) do not import each other.
This layer connects them:

- `runtime`: the `Runtime` value with the parts of an app; `app` builds it and passes it on.
- `registration`, `reactions`, `commit_notifier`: the steps around a publish.
- `brokers`: what a worker reads from brokers and sends to them.
- `endpoint_handlers`, `rebuild`: webhook endpoints as handlers, and projector rebuilds.
"""
