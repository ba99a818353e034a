"""Plain values with a text form: durations, sizes, names, bounded counts and printable text."""
