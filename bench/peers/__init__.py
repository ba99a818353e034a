"""One small program for each measured system. It runs in a separate environment and uses one protocol."""
