"""Writes of messages and their deliveries.

`publish` writes messages with the cached subscriptions of `fanout`; `intake` stores broker records; `registry` declares
consumers and subscriptions and catches up on missed messages; `schedule` fires cron occurrences; `backfill` creates
deliveries of earlier events; `prune` removes old rows.
"""
