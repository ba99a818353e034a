"""`holdfast console`: the web console, with the HTTP API, health and metrics, on one port."""

import asyncio
import importlib.util

import click

from holdfast.core.errors import ConfigurationError
from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.output import note
from holdfast.interfaces.cli.settings import command, settings

_NEEDED = ("starlette", "jinja2", "uvicorn")


@command(name="console", acts=True, logs=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8470, show_default=True, help="0 takes one that is free."
)
@click.option("--read-only", is_flag=True, help="Show everything, change nothing.")
@click.option(
    "--auth",
    type=click.Choice(("none", "token")),
    default="none",
    show_default=True,
    help="Who may come in: everybody on this machine, or whoever has a token of `holdfast tokens create`.",
)
def cli(host: str, port: int, read_only: bool, auth: str) -> ExitCode:
    """Serve the web console until interrupted; it carries stored plans on while it runs.

    On another address than this machine's own it does not start without --auth token. Put a proxy that speaks TLS before it there.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"the console needs {', '.join(missing)}; run `pip install holdfast[console]`")
    from holdfast.app.loop import stopped_by_signals
    from holdfast.interfaces.cli.logs import configure_logs
    from holdfast.interfaces.console.standalone import Auth, open_port, serve, standalone
    from holdfast.ops.service import Operations

    chosen: Auth = "token" if auth == "token" else "none"
    store = settings().store()
    store.check_schema()
    configure_logs(settings().log_format, settings().log_level.lower())
    app = standalone(Operations(store), host=host, auth=chosen, actor=settings().who(), read_only=read_only)

    async def run() -> None:
        with open_port(host, port) as bound:
            stop = asyncio.Event()
            shown = f"[{host}]" if ":" in host else host
            note(f"the console of {store.name} is at http://{shown}:{bound.getsockname()[1]}/ (Ctrl-C ends it)")
            with stopped_by_signals(stop, lambda: None):
                await serve(app, bound, stop)
        await store.close()

    asyncio.run(run())
    return ExitCode.DONE
