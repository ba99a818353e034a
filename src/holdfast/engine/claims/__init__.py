"""Decides when a session claims, how much and from which lanes, and where the claimed deliveries wait for a slot.

`scheduler` and `flow_scheduler` are pure: they decide from what earlier queries found and cost. `flow_claimer` and
`flow_adoption` claim from lanes with flow control. `lane_queries` finds lanes. `slot_pool` limits the deliveries that run
at the same time. `orphaned_claims` finds claims whose reply was lost, and `idle` finds out whether a worker that runs until
idle is done.
"""
