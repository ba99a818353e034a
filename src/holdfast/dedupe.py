"""Where a consumer with `dedupe=` stores the keys it has handled: `Holdfast(dedupe=RedisDedupe(url))`.

The default is `StoreDedupe`, the app's own store.
"""

from holdfast.idempotency.dedupe import Dedupe, MemoryDedupe, RedisDedupe, StoreDedupe

__all__ = ["Dedupe", "MemoryDedupe", "RedisDedupe", "StoreDedupe"]
