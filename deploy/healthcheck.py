"""The image's health check: exit status 0 while the gateway in this container would serve a request now.

Asks /readyz where the DOTS3_… variables say that the gateway listens; flags and files of settings it does not see.
"""

from __future__ import annotations

import os
import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection

_TIMEOUT_S = 4.0


def main() -> int:
    port = int(os.environ.get("DOTS3_PORT", "8000"))
    try:
        connection = _connection(port)
        connection.request("GET", "/readyz")
        reply = connection.getresponse()
        said = reply.read().decode("utf-8", "replace")
    except (OSError, HTTPException) as error:
        sys.stderr.write(f"port {port} does not answer: {error}\n")
        return 1
    sys.stderr.write(said + "\n")
    return 0 if reply.status == 200 else 1


def _connection(port: int) -> HTTPConnection:
    if "DOTS3_SSL_CERTFILE" not in os.environ:
        return HTTPConnection("localhost", port, timeout=_TIMEOUT_S)
    # Its certificate is for the name that clients use, not for localhost.
    return HTTPSConnection("localhost", port, timeout=_TIMEOUT_S, context=ssl._create_unverified_context())


if __name__ == "__main__":
    sys.exit(main())
