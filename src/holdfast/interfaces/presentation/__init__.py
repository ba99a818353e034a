"""What the front ends share. A front end imports `ops` and this package, never another front end.

`filters` parses and checks ids, times and filters. `formatting` formats times, durations and untrusted text.
`deliveries` describes deliveries in words: state, attempts, next commands. `refusals` records refused requests.
"""
