"""Commands for HTTP keys, webhooks and the encryption of stored values."""
