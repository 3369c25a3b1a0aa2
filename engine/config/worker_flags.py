"""The flags that every kind of worker takes. Each adds its own; what becomes of them is its business."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_shared_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--listen", required=True, metavar="ADDRESS", help="ipc://PATH or tcp://HOST:PORT")
    add("--model", required=True, type=Path, metavar="FOLDER", help="checkpoint; dots3 worker: default the bundled one")
    add("--wire-key", type=Path, metavar="FILE", help="a secret shared with the gateways; needed on TCP off loopback")
    add("--worker-id", metavar="NAME")
    add("--grace-period", type=float, default=0.0, metavar="SECONDS", help="for running requests when told to stop")
    add("--parent-pid", type=int, metavar="PID", help="stop when this parent process is gone")
    add("--parent-folder", type=Path, metavar="FOLDER", help="its folder, to be removed if it is gone without doing so")
    add("--kv-cache-dtype", default="auto", choices=("auto", "fp8"))
    add("--max-model-len", type=int, metavar="TOKENS")
    add("--max-num-seqs", type=int, metavar="N")
    add("--max-num-batched-tokens", type=int, metavar="TOKENS")
    add("--gpu-memory-utilization", type=float, metavar="SHARE")
    add("--kv-cache-memory-bytes", type=int, metavar="BYTES")
    add("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    add("--seed", type=int, help="of requests that bring none")
    add("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    add("--log-format", default="text", choices=("text", "json"))
