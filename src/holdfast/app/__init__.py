"""The `Holdfast` object, and what applications declare on it.

    holdfast     the app; it builds the `Runtime` of its store       sync          its blocking methods
    declaration  handlers and their options, sources, relays         jobs          jobs, groups, chains, schedules
    workflows    workflows and their runs                            worker        runs workers in one process or several
    events, projectors, webhooks, breakers: the parts behind `hf.events`, `hf.projectors`, `hf.webhooks`, `hf.breaker`
    telemetry    metrics of the app for Prometheus and OpenTelemetry

Declaring handlers opens no connection: importing an app has no side effects.
"""
