"""`dots3 worker`: a worker alone, for gateways that run elsewhere. Its options are the worker's own."""

import typer

app = typer.Typer(add_completion=False)


# `--help` too is the worker's own.
@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def worker(ctx: typer.Context) -> None:
    """Run a worker that gateways connect to: --listen ADDRESS [--model FOLDER] …"""
    from engine.config.log_format import set_up_logging
    from engine.runtime.worker import parser
    from server.settings import BUNDLED_MODEL
    from server.worker_alone import run_worker

    defaults = ["--model", str(BUNDLED_MODEL), "--grace-period", "30"]
    arguments = [*defaults, *ctx.args]  # of two, the second counts
    flags = parser().parse_args(arguments)  # a mistake ends here, and is told by the worker's own parser
    set_up_logging(flags.log_level, flags.log_format)
    raise typer.Exit(run_worker(flags.listen, flags.wire_key, flags.grace_period, arguments))
