"""`holdfast console`: serves the web console, the HTTP API, health checks and metrics on one port."""

import asyncio
import importlib.util
from functools import partial

import click

from holdfast.core.errors import ConfigurationError
from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.next_command import next_command
from holdfast.interfaces.cli.output import note
from holdfast.interfaces.cli.settings import command, settings

_NEEDED = ("starlette", "jinja2", "uvicorn")


@command(name="console", acts=True, logs=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8470,
    show_default=True,
    help="Port to listen on. 0 selects a free port.",
)
@click.option("--read-only", is_flag=True, help="Allow no changes.")
@click.option(
    "--auth",
    type=click.Choice(("none", "token")),
    default="none",
    show_default=True,
    help="none: every user of this machine. token: only with a token from `holdfast tokens create`.",
)
def cli(host: str, port: int, read_only: bool, auth: str) -> ExitCode:
    """Serve the web console until interrupted. It also executes stored plans.

    An address other than loopback requires --auth token. In that case, put a TLS proxy in front of the console.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"the console requires {', '.join(missing)}; run `pip install 'holdfast[console]'`")
    from holdfast.interfaces.cli.logs import configure_logs
    from holdfast.interfaces.server.standalone import Auth, open_port, serve, standalone
    from holdfast.ops.service import Operations
    from holdfast.runtime.loop import stopped_by_signals

    chosen: Auth = "token" if auth == "token" else "none"
    store = settings().store()
    store.check_schema()
    configure_logs(settings().log_format, settings().log_level.lower(), partial(next_command, settings=settings()))
    app = standalone(Operations(store), host=host, auth=chosen, actor=settings().who(), read_only=read_only)

    async def run() -> None:
        with open_port(host, port) as bound:
            stop = asyncio.Event()
            shown = f"[{host}]" if ":" in host else host
            note(
                f"serving the console of {store.name} at http://{shown}:{bound.getsockname()[1]}/ (press Ctrl-C to stop)"
            )
            with stopped_by_signals(stop, lambda: None):
                await serve(app, bound, stop)
        await store.close()

    asyncio.run(run())
    return ExitCode.DONE
