"""Jobs, groups, chains and schedules as users call them, and the handles of what was enqueued."""
