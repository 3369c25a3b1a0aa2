"""`dots3 serve`: the gateway and its workers in the foreground. Its options are the settings of the server."""

import dataclasses
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer

from server.settings import Settings, SettingsError, load_settings

app = typer.Typer(add_completion=False, rich_markup_mode=None)  # plain help shows long option names whole


def serve(**flags: Any) -> None:
    """Serve a checkpoint over HTTP.

    Each option is also DOTS3_… in the environment and a key of --config FILE: flag beats environment beats file.
    """
    try:
        settings = load_settings({name: value for name, value in flags.items() if value not in (None, [])})
    except SettingsError as error:
        typer.echo(f"dots3 serve: {error}", err=True)
        raise typer.Exit(2) from error
    from server.serving import run_server

    raise typer.Exit(run_server(settings, typer.echo))


def _parameter(field: Any) -> Parameter:
    """How a setting is asked for. Its value is read by the settings, as in the environment and the file."""
    word: str = field.name.replace("_", "-")
    default = None if field.default == () else field.default
    if isinstance(default, bool):
        default = "on" if default else "off"
    help_text = field.metadata["help"] + ("" if default is None else f" [{default}]")
    if field.name == "model":
        help_text = field.metadata["help"] + "; without it, the bundled one"
        annotation: Any = Annotated[str | None, typer.Argument(help=help_text)]
    elif isinstance(field.default, bool):
        option = typer.Option(f"--{word}/--no-{word}", help=help_text)
        annotation = Annotated[bool | None, option]
    else:
        metavar = word.rpartition("-")[2].upper()
        option = typer.Option(f"--{word}", help=help_text, metavar=metavar)
        annotation = Annotated[list[str] | None if isinstance(field.default, tuple) else str | None, option]
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


_CONFIG = Parameter(
    "config",
    Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[str | None, typer.Option(help="YAML file of settings", metavar="FILE")],
)
# Typer reads a command's options from its signature, and here they are the settings' fields.
serve.__signature__ = Signature([*map(_parameter, dataclasses.fields(Settings)), _CONFIG])  # type: ignore[attr-defined]
serve.__annotations__ = {}
app.command()(serve)
