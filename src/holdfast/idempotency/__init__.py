"""HTTP idempotency and consumer deduplication: an operation runs once even if it is requested twice.

A request with an `Idempotency-Key` reserves its key under a lease, runs, and stores its response:

    (no record) ──reserve──> started ──store──> completed | failed ──retention──> (no record)
                                └──release or expired lease──> started, by the same request

`engine` decides, `capture` collects the response, and `asgi`, `wsgi`, `flask` and `django` connect them to a framework.
`records` and `redis` store the records, and `renewal` extends the leases. `dedupe` skips recently handled messages.
"""
