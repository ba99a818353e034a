"""Projections: results that are built from the event store, and can be built anew."""
