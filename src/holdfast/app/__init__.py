"""The object a user holds, and what is declared on it."""
