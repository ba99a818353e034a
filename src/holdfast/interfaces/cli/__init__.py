"""The `holdfast` command. Data goes to stdout, notes and errors to stderr.

`root` imports a subcommand on first use and turns every error into one line and an exit code (`exit_codes`).
`settings` defines the options that every command accepts, `filters` the options of lists. `actions` makes the commands
of operator actions from the shared table. `output` prints tables (`table`) or JSON (`--format json`).

    deliveries    messages, deliveries, dead letters, replay, bulk actions
    handlers      queues, consumers, jobs, schedules, projectors, workflows
    integrations  HTTP keys, webhooks, encryption
    system        workers, console, schema, statistics, access, drills
"""

from holdfast.interfaces.cli.root import main

__all__ = ["main"]
