"""Only PostgreSQL."""
