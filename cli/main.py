"""The `dots3` command: its sub-commands and their options.

Owns no behaviour: a command imports what it runs when it is called, so that `dots3 --help` stays fast.
"""

from importlib.metadata import version
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Serve the Dots3 NOTE model.")


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


# The server's options are not known here before there is a server, so any of them is taken and none is checked.
@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve() -> None:
    """Serve a checkpoint over HTTP (not in this version yet)."""
    typer.echo(
        "dots3 serve: there is no server in this version yet.\n"
        "Here already: the bundled checkpoint's recipe (`make train`) and its meter (`make evaluate`).",
        err=True,
    )
    raise typer.Exit(code=1)


if __name__ == "__main__":
    app()
