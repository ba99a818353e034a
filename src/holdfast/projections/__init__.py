"""Projections: results that handlers build from the event store, and that can be rebuilt.

A projector is a consumer with `reset` (empty the result) and optionally `swap` (make the rebuilt result the live one).
`rebuild` applies the event log in order under a fenced lease and a stored checkpoint, so that a killed rebuild can resume:

    started ── apply the log ──> held ── running deliveries finish, apply the rest ──> swapped
                   ^               │
                   └── still busy ─┘
"""
