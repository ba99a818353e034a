"""One small program for each measured system. It runs in an environment of its own and speaks one protocol."""
