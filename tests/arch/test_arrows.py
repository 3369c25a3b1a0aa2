"""Keeps the import arrows of ARCHITECTURE.md true, and the training data's path free of what its machine lacks."""

import pytest

from tests.arch.sources import ROOT, TOP_FOLDERS, imports_of, loaded_with, module_files, read_modules

EVERYTHING = frozenset(TOP_FOLDERS)
# Part → the parts that it may import, besides itself. `engine` alone is its empty __init__.
ARROWS: dict[str, frozenset[str]] = {
    "cli": EVERYTHING,
    "training": EVERYTHING,
    "bench": EVERYTHING,
    "tests": EVERYTHING,
    "server": frozenset({"parsers", "multimodal", "engine.wire", "engine.config"}),
    "parsers": frozenset(),
    "multimodal": frozenset({"engine.wire", "engine.config"}),
    "engine": frozenset(),
    "engine.wire": frozenset(),
    "engine.config": frozenset(),
    "engine.grammar": frozenset({"engine.config"}),
    "engine.reference": frozenset(),
    "engine.kernels": frozenset({"engine.reference"}),
    "engine.cache": frozenset({"engine.config"}),
    "engine.sched": frozenset({"engine.config", "engine.wire", "engine.cache", "engine.grammar"}),
    "engine.model": frozenset({"engine.config", "engine.kernels"}),
    "engine.vllm": frozenset({"engine.wire", "engine.config", "engine.grammar"}),
    "engine.runtime": frozenset(
        {"engine.config", "engine.wire", "engine.cache", "engine.sched", "engine.grammar", "engine.model"}
        | {"engine.kernels", "multimodal"}
    ),
}
NO_TORCH = (
    *("server", "parsers", "multimodal"),
    *("engine.wire", "engine.config", "engine.cache", "engine.sched", "engine.grammar"),
)

# The machine that trains has numpy, Pillow, Jinja2, tokenizers and torch; it cannot read sound or film files.
TRAINING_PATH = ("training.data", "training.encode", "training.tasks", "training.model", "training.train")
NOT_ON_THE_TRAINING_MACHINE = ("av", "soxr")


def part_of(name: str) -> str | None:
    """The row of the table that `name` belongs to; None for a name that is not the project's."""
    rows = [row for row in ARROWS if name == row or name.startswith(row + ".")]
    return max(rows, key=len, default=None)


def forbidden_imports(module: str, imported: list[str]) -> list[str]:
    part = part_of(module)
    if part is None:
        return [f"{module} belongs to no part"]
    wrong = []
    for name in imported:
        target = part_of(name)
        if target not in (None, part) and not {target, name.split(".")[0]} & ARROWS[part]:
            wrong.append(f"{module} → {name}: {part} may not import {target}")
        if name.split(".")[0] in ("torch", "triton") and part in NO_TORCH:
            wrong.append(f"{module} → {name}: {part} runs where there is no torch")
    return wrong


def test_every_import_follows_an_arrow() -> None:
    wrong = [
        line
        for module, found in read_modules().items()
        for line in forbidden_imports(module, [one.name for one in found])
    ]
    assert not wrong, "\n".join(wrong)


def test_every_folder_of_the_engine_has_its_row() -> None:
    folders = {f"engine.{path.name}" for path in (ROOT / "engine").iterdir() if (path / "__init__.py").exists()}
    assert folders <= set(ARROWS)


@pytest.mark.parametrize(
    "root", [name for name in module_files() if f"{name}.".startswith(tuple(f"{part}." for part in TRAINING_PATH))]
)
def test_training_path_loads_no_file_decoder(root: str) -> None:
    loaded = loaded_with(root, read_modules())
    wrong = [f"{loaded[name]} imports {name}" for name in NOT_ON_THE_TRAINING_MACHINE if name in loaded]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("server.app", "import torch"),
        ("server.app", "def f():\n    from torch import nn"),
        ("server.app", "from engine.runtime import worker"),
        ("server.app", "from engine import runtime"),
        ("server.app", "import training.train"),
        ("parsers.events", "import server.app"),
        ("multimodal.image", "if True:\n    import triton.language as tl"),
        ("engine.wire.messages", "from engine.config.engine import EngineConfig"),
        ("engine.model.mla", "from engine.reference.gate import gate"),
        ("engine.sched.scheduler", "import torch.nn"),
        ("engine.shortcut", "from engine.runtime.worker import main"),
        ("scripts.deploy", "import os"),
    ],
)
def test_a_wrong_import_is_seen(module: str, source: str) -> None:
    assert forbidden_imports(module, [found.name for found in imports_of(source)])


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("server.prompt", "from multimodal.placeholders import expand"),
        ("server.engine_client", "from engine.wire import messages"),
        ("multimodal.image", "from multimodal.items import ImageItem\nimport numpy as np"),
        ("engine.model.mla", "import torch\nfrom engine.kernels.ops import Ops"),
        ("cli.main", "def f():\n    from engine.runtime.worker import main"),
        ("training.train", "import torch\nfrom multimodal.image import patches"),
    ],
)
def test_a_right_import_passes(module: str, source: str) -> None:
    assert not forbidden_imports(module, [found.name for found in imports_of(source)])


def test_loading_follows_packages_and_leaves_functions_and_type_imports_alone() -> None:
    sources = {
        "a": "import b.c",
        "b": "import av",
        "b.c": "def f():\n    import soxr\nif TYPE_CHECKING:\n    import torch",
    }
    loaded = loaded_with("a", {name: imports_of(source) for name, source in sources.items()})
    assert loaded == {"a": "a", "b": "a", "b.c": "a", "av": "b"}
