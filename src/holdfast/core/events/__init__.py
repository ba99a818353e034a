"""Event types, patterns and payloads: what a message may contain."""
