"""Programs that tests start as separate processes."""
