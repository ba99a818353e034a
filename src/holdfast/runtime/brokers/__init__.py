"""What a worker does with brokers: reads records, stores them as events, forwards dead letters, relays events."""
