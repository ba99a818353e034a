"""Writing messages and their deliveries: publishing, broker intake, backfill, schedules, the registry, pruning."""
