"""Hooks for dead letters: `Holdfast(alerts=[sentry_hook, webhook_hook("https://chat.example/hooks/ops")])`.

A hook is any function that takes one `DeadLetterAlert`, plain or async.
"""

from holdfast.engine.telemetry.alert import AlertHook, DeadLetterAlert, sentry_hook, webhook_hook

__all__ = ["AlertHook", "DeadLetterAlert", "sentry_hook", "webhook_hook"]
