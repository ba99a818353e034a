"""Commands for messages, deliveries and dead letters, and the bulk actions on them."""
