"""Lists, pages and counts."""
