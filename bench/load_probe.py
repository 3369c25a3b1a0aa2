"""Asks for a path over and over in a process of its own, so that a busy client does not count; prints p50, p99, count.

Until a line comes on standard input. Arguments: port, path (/livez), and the process id of who answers. With that it
prints one figure more, the p99 of the CPU time which that process spent meanwhile: where other programs hold the cores,
this is the part of the time that is its own.
"""

from __future__ import annotations

import http.client
import json
import statistics
import sys
import threading
import time

from bench.child import process_cpu_s
from bench.report import p99

_EVERY_S = 0.02


def main() -> None:
    path = sys.argv[2] if len(sys.argv) > 2 else "/livez"
    asked = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), asked.set()), daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=30)
    pid = int(sys.argv[3]) if len(sys.argv) > 3 else None
    took_ms, worked_ms = list[float](), list[float]()
    while not (took_ms and asked.wait(_EVERY_S)):  # once at least, however soon it is to end
        began_s, began_cpu_s = time.monotonic(), 0.0 if pid is None else process_cpu_s(pid)
        connection.request("GET", path)
        connection.getresponse().read()
        took_ms.append(1000 * (time.monotonic() - began_s))
        if pid is not None:
            worked_ms.append(1000 * (process_cpu_s(pid) - began_cpu_s))
    figures = [statistics.median(took_ms), p99(took_ms), len(took_ms)]
    if pid is not None:
        figures.append(p99(worked_ms))
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
