"""What the front ends share. A front end imports `ops` and this package, never another front end.

`actions` lists every operator action once: API routes, console forms and CLI commands are made from it. `filters`
parses and checks ids, times and filters. `views` defines the JSON of every result and, with it, the schemas of the API.
`deliveries` describes deliveries in words: state, attempts, next commands. `formatting` formats times, durations and
untrusted text. `refusals` records refused requests in the log and the audit log.
"""
