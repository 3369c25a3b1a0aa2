"""One server on the bundled checkpoint for all clients. Their packages are the optional extra `clients`.

The clients are imported where they are used: these files are collected where they are not installed, too.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.server_process import ServerProcess


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With a short context, so that an answer of weak weights that finds no end comes to one."""
    server = ServerProcess(tmp_path_factory.mktemp("server") / "log.txt", "--max-model-len", "2048")
    try:
        yield server
        assert server.terminate() == 0
    finally:
        server.kill()
