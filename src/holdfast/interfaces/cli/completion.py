"""`holdfast completion`: completes commands and options in the user's shell."""

import click
from click.shell_completion import get_completion_class

from holdfast.interfaces.cli.settings import command

_VARIABLE = "_HOLDFAST_COMPLETE"  # the one that click reads for a program of this name


@command(name="completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def cli(shell: str) -> None:
    """Print a script that completes commands and options.

    Evaluate it when the shell starts. bash: add `eval "$(holdfast completion bash)"` to ~/.bashrc; zsh: the same with zsh
    to ~/.zshrc; fish: `holdfast completion fish > ~/.config/fish/completions/holdfast.fish`.
    """
    complete = get_completion_class(shell)
    assert complete is not None, shell
    click.echo(complete(click.get_current_context().find_root().command, {}, "holdfast", _VARIABLE).source())
