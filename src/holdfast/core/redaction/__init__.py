"""Removal of secrets from text: `mask` for passwords and tokens, `redact` for declared fields of payloads."""
