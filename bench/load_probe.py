"""Asks for a path over and over in a process of its own, so that a busy client does not count; prints p50, p99, count.

Until a line comes on standard input. Arguments: port and path, which without it is /livez.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time

_EVERY_S = 0.02


def main() -> None:
    path = sys.argv[2] if len(sys.argv) > 2 else "/livez"
    asked = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), asked.set()), daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=30)
    took_ms = []
    while not asked.wait(_EVERY_S):
        began_s = time.monotonic()
        connection.request("GET", path)
        connection.getresponse().read()
        took_ms.append(1000 * (time.monotonic() - began_s))
    took_ms.sort()
    sys.stdout.write(json.dumps([took_ms[len(took_ms) // 2], took_ms[int(0.99 * len(took_ms))], len(took_ms)]) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
