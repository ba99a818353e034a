"""Where messages and deliveries live: one set of operations, two dialects that never import each other."""
