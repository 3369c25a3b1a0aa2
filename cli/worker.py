"""`dots3 worker`: a worker alone, for gateways that run elsewhere. Its options are the worker's own."""

import typer

app = typer.Typer(add_completion=False)


# `--help` too is the worker's own.
@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def worker(ctx: typer.Context) -> None:
    """Run a worker that gateways connect to: --listen ADDRESS --model FOLDER …"""
    from engine.runtime.worker import main

    raise typer.Exit(main(ctx.args))
