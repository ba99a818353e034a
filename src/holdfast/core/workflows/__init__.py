"""Workflows as values: the graph of the steps, the names in the store, and the states that are shown."""
