"""Periodic tasks of a worker: schedules, removal of old rows, takeover from dead workers, and quarantined deliveries."""
