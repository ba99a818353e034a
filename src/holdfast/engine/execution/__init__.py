"""Runs a claimed delivery: payload, thread, time-out, cancellation, and the outcome that the settlement gets.

`runner` runs a handler once and writes nothing. `executor` calls it for a delivery and queues the settlement;
`confirmation` first finds out whether a handler's own transaction committed. `consumer_blocker` pauses a consumer whose
resource is unavailable.
"""
