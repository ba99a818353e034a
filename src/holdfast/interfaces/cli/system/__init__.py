"""Commands that run and check Holdfast: workers, console, schema, statistics, access, drills."""
