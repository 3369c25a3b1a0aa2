"""The `dots3` command and the list of its sub-commands.

Owns no behaviour: a sub-command's module is loaded when it is asked for, and what that runs is imported when it runs,
so that `dots3 --help` stays fast.
"""

from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

_COMMANDS = ("serve", "worker", "chat", "plan", "bench")


class _Commands(TyperGroup):
    """Every command is the `app` of the module of its name."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 the parent's signature
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        command = get_command(import_module(f"cli.{cmd_name}").app)
        command.name = cmd_name
        return command


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, help="Serve the Dots3 NOTE model.")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dots3 {version('dots3')}")
        raise typer.Exit


@app.callback()
def dots3(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave."),
    ] = False,
) -> None:
    """Holds the options that stand before a sub-command."""


if __name__ == "__main__":
    app()
