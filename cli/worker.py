"""`dots3 worker`: a worker alone, for gateways that run elsewhere. Its options are the worker's own, but for two."""

import argparse

import typer

app = typer.Typer(add_completion=False)


# `--help` too is the worker's own.
@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def worker(ctx: typer.Context) -> None:
    """Run a worker that gateways connect to: --listen ADDRESS [--model FOLDER] [--engine native|vllm] …"""
    from engine.config.log_format import set_up_logging
    from server.settings import BUNDLED_MODEL
    from server.worker_alone import run_worker

    start, rest = _start_parser().parse_known_args(ctx.args)
    defaults = ["--model", str(BUNDLED_MODEL), "--grace-period", "30"]
    arguments = [*defaults, *rest]  # of two, the second counts
    flags = _flags(start.engine, arguments)  # a mistake ends here, and is told by the worker's own parser
    set_up_logging(flags.log_level, flags.log_format)
    raise typer.Exit(
        run_worker(flags.listen, flags.wire_key, flags.grace_period, arguments, start.engine, start.worker_python)
    )


def _start_parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="dots3 worker", add_help=False, allow_abbrev=False)
    made.add_argument("--engine", default="native", choices=("native", "vllm"))
    made.add_argument("--worker-python")
    return made


def _flags(engine: str, arguments: list[str]) -> argparse.Namespace:
    if engine == "vllm":
        from engine.vllm.arguments import parser as vllm_parser

        return vllm_parser().parse_known_args(arguments)[0]  # the others are vLLM's own
    from engine.runtime.worker import parser

    return parser().parse_args(arguments)
