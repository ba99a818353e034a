"""The ordered log and rebuilds of projectors."""
