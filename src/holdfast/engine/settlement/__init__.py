"""Turns outcomes into settlements and writes them in batches.

`builder` makes a settlement of an outcome, `settler` writes it, and what follows a durable settlement (log line, alert,
the next stage of a job group in `group_stages`) runs after that.
"""
