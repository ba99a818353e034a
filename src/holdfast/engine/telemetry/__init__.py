"""What runs report: log fields, folded log lines, metrics, traces and alerts."""
