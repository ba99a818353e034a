"""Operator actions, each audited: single and bulk actions, stored plans, tokens, redaction, alert rate limits."""
