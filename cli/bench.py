"""`dots3 bench NAME …`: the benchmarks of the project's tree, each a program of the folder `bench/`.

Owns their names. What follows a name is the benchmark's own; `--help` too. An installation without the tree has none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec

import typer

BENCHMARKS = {
    "throughput": ("bench_throughput", "Tokens per second on this CPU, beside transformers."),
    "gateway": ("bench_gateway", "What the gateway costs an event, beside a bare app."),
    "engine-step": ("bench_engine_step", "What an engine step costs outside the model."),
    "media": ("bench_media", "Pictures, sounds and films: decoding, first token, probes meanwhile."),
    "encoders": ("bench_encoders", "The encoders of pictures and sounds, beside transformers."),
    "parser": ("bench_parser", "How fast tool calls are read."),
    "grammar": ("bench_grammar", "What structured outputs cost: masks and compilation."),
    "kernels": ("bench_kernels", "Every kernel on this GPU, beside the least that is possible."),
    "drafts": ("bench_drafts", "What drafts bring on the bundled checkpoint."),
    "slice": ("slice", "Six layers of the released model through the engine on this GPU."),
    "load": ("load", "What a server bears: bursts, slow readers, clients that leave."),
}

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True, help="Run a benchmark.")


def _runs(name: str, module: str) -> Callable[[typer.Context], None]:
    def run(ctx: typer.Context) -> None:
        if find_spec("bench") is None or find_spec(f"bench.{module}") is None:
            typer.echo(
                f"dots3 bench: {name} is the program bench/{module}.py of the project's tree, and this installation is"
                " not from one: clone the project and use `pip install -e .` or `make bench` there",
                err=True,
            )
            raise typer.Exit(2)
        import runpy

        sys.argv = [f"dots3 bench {name}", *ctx.args]
        runpy.run_module(f"bench.{module}", run_name="__main__")

    return run


for _name, (_module, _what) in BENCHMARKS.items():
    app.command(
        _name,
        help=_what,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(_runs(_name, _module))
