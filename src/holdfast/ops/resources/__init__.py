"""The resources that operators list and change: queues, consumers, schedules, webhooks, circuits, keys and tokens."""
