"""What several test packages share.

- `apps`: fixtures for an app on each database, and for its log lines
- `stores`: fixtures for a migrated store on each database
- `worker`: runs a worker in the test's event loop and waits for its results
- `builders`: creates messages and deliveries and moves them in time
- `failures`: creates dead letters and one delivery in each state
"""
