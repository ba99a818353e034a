"""`doctor`: gathers facts about the store and the brokers, and runs checks on them. Each finding has a remedy."""
