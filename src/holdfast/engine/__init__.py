"""Workers: claim deliveries, run their handlers, settle the outcomes, and take over the deliveries of dead workers.

A `Worker` runs one `WorkerSession` after another, each under one lease. `ClaimScheduler` decides when and what to claim,
`Runner` runs a handler, `core.decide` decides what its outcome means, and `Settler` writes the result in batches.

    worker       a worker, its sessions, lease and options     handlers     functions, parameters, context
    claims       when and what to claim, slots                 execution    one run of a handler
    settlement   outcomes as writes, in batches                maintenance  schedules, pruning, takeover, quarantine
    batches      handlers of many deliveries                   workflows    steps of workflow runs
    telemetry    log fields, metrics, traces, alerts

    pending ── claim ──> in_flight ── success ──> delivered
       ^                         │
       ├── retry, snooze, park, ─┤
       │   block, release,       │
       │   expired lease         │
       └── replay ── failed <────┘   terminal error, or no attempts left: a dead letter

Every write is fenced: a worker that lost its lease changes nothing.
"""
