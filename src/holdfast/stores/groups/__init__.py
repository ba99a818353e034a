"""Groups of jobs in stages. A job of a later stage is a pending delivery that waits until the stage before has ended.

::

    stage 0   pending ──▶ in_flight ──▶ delivered | failed          ordinary deliveries
    stage 1   pending, waits ──claim──▶ stage 0 unfinished?  ──yes──▶ pending, waits
                                        all have ended       ──────▶ run | discarded | dead letter

There are no counters: the state of a group is the state of its deliveries, so a retry, a replay, a discarded dead letter, a
cancellation or a lease that expired needs no code here. A worker that settled jobs of a group makes the waiting job due
(`wake_stages`); if that is lost, the waiting job is claimed and checked again, after at most the age of the group.
"""
