"""The `Holdfast` object, and what applications declare on it.

- `holdfast`, `sync`: the app and its blocking methods. It builds the `Runtime` of its store.
- `router`, `job`, `handler_options`: consumers, projectors, jobs, commands, schedules, relays and reactions.
- `events`, `projectors`, `webhooks`, `breakers`: the parts behind `hf.events`, `hf.projectors`, `hf.webhooks`, `hf.breaker`.
- `worker_runner`, `supervisor`, `app_loader`: run workers in this process or in several, and load an app by its name.
- `telemetry`: metrics of the app for Prometheus and OpenTelemetry.

Declaring handlers opens no connection: importing an app has no side effects.
"""
