"""What people see of the engine: logs, metrics, traces, alerts; and what they must not see."""
