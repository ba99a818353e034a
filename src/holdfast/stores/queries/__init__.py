"""Read-only queries.

`query` has the filter and the lists, `pagination` bounded pages, `delivery_counts` counts from indexes, `search` text
search, `request_trace` everything that one request caused, `failure` the runs of a failure group, `throughput` rates,
`health` the checks of `holdfast doctor`, `time_travel` the clock of tests.
"""
