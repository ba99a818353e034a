"""Running deliveries.

::

    pending --claim--> in_flight --settle--> delivered | failed | pending (retry, snooze, park, block)
                           |
                           +--lease expired--> rescue, then settle

Each claim increments the fence of the row. A settlement only applies if fence and owner are unchanged. `worker` keeps
the lease of a worker, `dedupe` the keys that a consumer has handled.
"""
