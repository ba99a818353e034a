"""The benchmark: Holdfast, its peers and the bare database, measured side by side on one machine."""
