"""`holdfast mcp`: an MCP server on stdin and stdout."""

import click

from holdfast.core.errors import ConfigurationError
from holdfast.interfaces.cli.settings import command, settings


@command(name="mcp", acts=True)
@click.option("--allow-actions", is_flag=True, help="Let the agent replay dead letters.  [default: read only]")
@click.option("--read-only", is_flag=True, help="Offer only tools that read. This is the default.")
def cli(allow_actions: bool, read_only: bool) -> None:
    """Serve MCP tools to an agent. The Model Context Protocol runs on stdin and stdout.

    The agent can only read unless --allow-actions is given. Its actions are audited under the actor given here, followed by
    "via mcp".
    """
    if allow_actions and read_only:
        raise click.UsageError("--allow-actions and --read-only are mutually exclusive; pass one of them")
    try:
        from holdfast.interfaces.mcp.server import server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise ConfigurationError(
            "holdfast mcp requires the Model Context Protocol SDK; run `pip install 'holdfast[mcp]'`"
        ) from None
    from holdfast.ops.service import Operations

    store = settings().store()
    store.check_schema()
    server(Operations(store), actor=f"{settings().who()} via mcp", allow_actions=allow_actions).run("stdio")
