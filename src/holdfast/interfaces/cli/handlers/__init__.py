"""Commands for what processes deliveries: queues, consumers, jobs, groups, schedules, projectors, workflows."""
