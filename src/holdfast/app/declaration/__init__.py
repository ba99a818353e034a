"""What an app declares: handlers and their options, sources, relays, and how an app includes a router."""
