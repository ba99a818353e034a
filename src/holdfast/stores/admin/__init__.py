"""Operator actions, each audited in its transaction.

`actions` replays, discards, cancels, pauses and blocks single items. `plan` has stored bulk actions, `plan_creation`
selects their deliveries, `bulk_actions` executes them in batches and `plan_results` follows the replayed deliveries.
`audit` reads the audit; `token` keeps API tokens, `redaction` secret fields and `alert` the rate limit of alerts.
"""
