"""The query plans of hot statements and lists."""
