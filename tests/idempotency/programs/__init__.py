"""Programs that the tests start as separate processes."""
