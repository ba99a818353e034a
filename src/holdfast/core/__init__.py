"""The rules of Holdfast as pure values and functions: no I/O, no clock, no randomness, no driver.

`decide` maps the outcome of a run to a change of its delivery; `drive` runs generators for async and blocking callers.

    values     durations, sizes, names, bounded counts, printable text
    events     event classes, patterns, payloads as JSON
    failures   exceptions as verdicts, reports and fingerprints
    errors     the exceptions that Holdfast raises
    redaction  removal of secrets from text
    telemetry  correlation ids, trace context, log lines, metrics
"""
