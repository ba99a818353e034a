"""The fault lab: real processes and servers under faults, and a count of what was lost, applied twice or stuck.

`make chaos` starts workers, a client, an HTTP server, brokers and a database, injects one fault after the other and
checks after each one that every accepted item was applied. One scenario is a load, a fault and a store:

    loads        what the client submits and what the workers do with it: publish, work, complete, webhooks, …
    faults       kill, pause, restart, cut connections, lost replies, a full disk, a wrong clock, failover, …
    stores       sqlite, postgres (behind a proxy, on a small disk), cluster (a primary with a synchronous standby)

All loads run at the same time, so that one injection of a fault tests each of them. The report is a matrix of the
combinations that ran, in JSON and HTML. It imports the servers and programs of the tests, never the other way round.
"""
