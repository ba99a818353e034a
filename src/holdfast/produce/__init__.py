"""Producers: from an event to rows in somebody's transaction."""
