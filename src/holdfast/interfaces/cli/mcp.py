"""`holdfast mcp`: the tools for agents, over standard input and output."""

import click

from holdfast.core.errors import ConfigurationError
from holdfast.interfaces.cli.settings import command as make
from holdfast.interfaces.cli.settings import settings


@make(name="mcp", acts=True)
@click.option("--read-only", is_flag=True, help="Leave out the tools that act.")
def command(read_only: bool) -> None:
    """Serve dead letters and their replay to an agent (Model Context Protocol on stdin and stdout).

    An agent's actions are audited under the actor given here, with "via mcp" behind it.
    """
    try:
        from holdfast.interfaces.mcp.server import server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise ConfigurationError(
            "holdfast mcp needs the Model Context Protocol SDK: pip install holdfast[mcp]"
        ) from None
    from holdfast.ops.service import Operations

    store = settings().store()
    store.check_schema()
    server(Operations(store), actor=f"{settings().who()} via mcp", read_only=read_only).run("stdio")
