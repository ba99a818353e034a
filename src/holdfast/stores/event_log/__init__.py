"""The event store as an ordered log: reading, reader positions, projector rebuilds, relays."""
