"""Runs of workflows: a run is its start message, and a step is a delivery of that message.

The caller's transaction only appends: a start, a command's message, the result of `ctx.complete`. Every decision runs in
the engine's READ COMMITTED transaction under the lock of the run. Locks are taken in the order run, delivery, step.

    start -> advance -> ... -> done          suspend -> signal, time or child -> advance
                    -> dead step -> failed   or  -> compensating -> failed
    cancel -> cancelled
"""
