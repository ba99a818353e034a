"""Many callers at once, and two transactions step by step."""
