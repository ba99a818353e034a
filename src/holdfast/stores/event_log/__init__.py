"""The event store as an ordered log.

`log` reads events in an order that skips no late commit, `position` stores the fenced position of each reader,
`projection` rebuilds projectors from the log, and `relay` records which events a broker has confirmed.
"""
