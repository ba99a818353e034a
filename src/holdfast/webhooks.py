"""Verifies received webhooks: `holdfast.webhooks.verify(body, headers, secret)`.

Senders use `hf.webhooks`.
"""

from holdfast.core.errors import InvalidSignature
from holdfast.outbound.webhooks.options import WebhookOptions
from holdfast.outbound.webhooks.signature import new_secret, sign, verify

__all__ = ["InvalidSignature", "WebhookOptions", "new_secret", "sign", "verify"]
