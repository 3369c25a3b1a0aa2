"""What this project uses of vLLM, read from its sources without running them.

`python -m tests.vllm.signatures FOLDER VERSION` reads an unpacked wheel and prints what lies in
tests/fixtures/vllm/signatures.json.
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "vllm" / "signatures.json"
FAKE = Path(__file__).parent / "fake"

_METHODS = {
    "vllm/v1/engine/async_llm.py": {"AsyncLLM": ("from_engine_args", "generate", "shutdown")},
    "vllm/engine/arg_utils.py": {"EngineArgs": ("from_cli_args",), "AsyncEngineArgs": ("add_cli_args",)},
}
_FIELDS = {
    "vllm/sampling_params.py": ("SamplingParams", "StructuredOutputsParams", "RequestOutputKind"),
    "vllm/outputs.py": ("CompletionOutput",),
    "vllm/logprobs.py": ("Logprob",),
    "vllm/inputs/llm.py": ("_PromptOptions", "TokensPrompt"),
    "vllm/v1/metrics/stats.py": ("SchedulerStats", "PrefixCacheStats", "BaseCacheStats", "RequestStateStats"),
    "vllm/v1/spec_decode/metrics.py": ("SpecDecodingStats",),
}
_EXCEPTIONS = {
    "vllm/exceptions.py": ("VLLMClientError", "GracefulHTTPError"),
    "vllm/v1/engine/exceptions.py": ("EngineDeadError",),
}


def signatures_of(folder: Path) -> dict[str, Any]:
    """Of those files that are there."""
    found: dict[str, Any] = {"methods": {}, "fields": {}, "exceptions": [], "flags": []}
    for file, classes in _METHODS.items():
        for name, methods in classes.items():
            body = _classes(folder / file)[name].body
            made = {one.name: one for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
            found["methods"] |= {f"{name}.{method}": _parameters(made[method]) for method in methods}
    for file, names in _FIELDS.items():
        if (folder / file).exists():
            classes_there = _classes(folder / file)
            found["fields"] |= {name: _fields(classes_there[name]) for name in names}
    for file, names in _EXCEPTIONS.items():
        there = _classes(folder / file)
        found["exceptions"] += [f"{name}({ast.unparse(there[name].bases[0])})" for name in names]
    found["flags"] = _flags(folder / "vllm/engine/arg_utils.py")
    return found


def fields_of(file: Path, name: str) -> list[str]:
    return _fields(_classes(file)[name])


def _classes(file: Path) -> dict[str, ast.ClassDef]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, Any]:
    given = function.args
    positional = [one.arg for one in (*given.posonlyargs, *given.args)]
    return {
        "kind": type(function).__name__,
        "positional": positional,
        "required": positional[: len(positional) - len(given.defaults)],
        "keyword_only": [one.arg for one in given.kwonlyargs],
    }


def _fields(made: ast.ClassDef) -> list[str]:
    annotated = [one.target for one in made.body if isinstance(one, ast.AnnAssign)]
    assigned = [target for one in made.body if isinstance(one, ast.Assign) for target in one.targets]
    return [target.id for target in (*annotated, *assigned) if isinstance(target, ast.Name)]


def _flags(file: Path) -> list[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return sorted(word for word in words if word.startswith("--") and " " not in word)


def main(arguments: list[str]) -> None:
    folder, version = arguments
    found = {"taken_from": f"vllm {version}", **signatures_of(Path(folder))}
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
