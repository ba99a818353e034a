"""A worker and its sessions: options, dependencies, lease, and how it is woken and stopped.

A `Worker` runs one `WorkerSession` after another, each under one lease. `periodic` repeats tasks, `process_limits` and
`parent_watchdog` end a worker process that has reached a limit or has lost its parent.
"""
