"""One server on the bundled checkpoint for all end-to-end tests, and OpenAI's own client for it."""

from collections.abc import Callable, Iterator

import openai
import pytest

from tests.e2e.server_process import ServerProcess

Start = Callable[..., ServerProcess]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Shared: a test that harms its server starts one of its own."""
    server = ServerProcess(tmp_path_factory.mktemp("server") / "log.txt")
    try:
        yield server
        assert server.terminate() == 0
    finally:
        server.kill()


@pytest.fixture
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    started = []

    def start(*flags: str) -> ServerProcess:
        started.append(ServerProcess(tmp_path_factory.mktemp("server") / "log.txt", *flags))
        return started[-1]

    yield start
    for server in started:
        server.kill()


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        yield client
