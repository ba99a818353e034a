"""Publishing, intake, registry, schedules and pruning."""
