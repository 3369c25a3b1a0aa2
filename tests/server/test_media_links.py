"""Where media come from: data: URLs, files below one folder, the web; and the addresses that are never asked."""

import asyncio
import base64
import ipaddress
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.media.addresses import AddressRefusedError, Hosts, is_public
from server.media.fetch import Downloads, FetchLimits
from server.media.sources import SourceError, base64_bytes, data_url_bytes, file_bytes
from tests.support.live_gateway import LiveGateway, live_gateway, wait_until
from tests.support.media_links import MediaServer, content, data_url, media_server, part, user

PICTURE = content("exif6.jpg")
PLAIN = base64.b64encode(PICTURE).decode()


@pytest.fixture(scope="module")
def web() -> Iterator[MediaServer]:
    with media_server() as server:
        yield server


# ---- data:


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/jpeg;base64,{PLAIN}",
        f"DATA:IMAGE/JPEG;BASE64,{PLAIN}",
        f"data:;base64,{PLAIN}",
        f"data:image/jpeg;charset=utf-8;name=a.jpg;base64,{PLAIN}",
        f"data:image/jpeg;base64,{PLAIN.rstrip('=')}",
        f"data:image/jpeg;base64,{PLAIN.replace('+', '-').replace('/', '_')}",
        f"data:image/jpeg;base64,{PLAIN.replace('+', '%2B').replace('=', '%3D')}",
        "data:image/jpeg;base64," + "\r\n".join(PLAIN[at : at + 76] for at in range(0, len(PLAIN), 76)),
        "data:image/jpeg," + "".join(f"%{byte:02x}" for byte in PICTURE),
    ],
    ids=["usual", "capitals", "no type", "parameters", "no padding", "url alphabet", "escaped", "lines", "percent"],
)
def test_data_urls_in_all_their_forms(url: str) -> None:
    assert data_url_bytes(url) == PICTURE


@pytest.mark.parametrize(
    ("sent", "read"),
    [("%", b"%"), ("a%4", b"a%4"), ("%2541", b"%41"), ("%%41%zz%fF%", b"%A%zz\xff%"), ("é%0a", "é\n".encode())],
)
def test_escapes_are_read_once_and_what_is_none_stays(sent: str, read: bytes) -> None:
    assert data_url_bytes("data:," + sent) == read


@pytest.mark.parametrize("line", [3, 76, 10**9])
def test_long_content_is_decoded_in_pieces_without_a_seam(line: int) -> None:
    data = os.urandom(100_001)
    text = base64.b64encode(data).decode()
    assert base64_bytes(text) == base64_bytes("data:," + text, len("data:,")) == data
    assert base64_bytes("\n".join(text[at : at + line] for at in range(0, len(text), line))) == data
    escaped = "".join(f"%{ord(letter):02X}" for letter in text)
    for shift in range(3):  # an escape lies on the border of two pieces
        assert base64_bytes(" " * shift + escaped) == data
        assert data_url_bytes("data:" + "," + "a" * shift + escaped) == b"a" * shift + text.encode()


@pytest.mark.parametrize(
    "url",
    [
        "data:image/jpeg;base64,####",
        "data:image/jpeg;base64,AAAAA",
        "data:image/jpeg;base64,AA==AAAA",
        pytest.param("data:;base64," + "A" * 65534 + "==" + "AAAA" * 10, id="padding at the end of a piece"),
        "data:image/jpeg;base64",
    ],
)
def test_damaged_data_urls_are_refused(url: str) -> None:
    with pytest.raises(SourceError, match=r"base64 is damaged|must have a comma"):
        data_url_bytes(url)


# ---- file:


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    allowed = tmp_path / "allowed"
    (allowed / "deep er").mkdir(parents=True)
    (allowed / "deep er" / "a.jpg").write_bytes(PICTURE)
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "allowed-too").mkdir()
    (tmp_path / "allowed-too" / "b").write_bytes(b"secret")
    (allowed / "out").symlink_to(tmp_path / "secret")
    (allowed / "up").symlink_to(tmp_path)
    os.mkfifo(allowed / "pipe")
    return allowed


def test_files_below_the_folder_are_read(folder: Path) -> None:
    for url in (f"file://{folder}/deep%20er/a.jpg", f"FILE://localhost{folder}/deep%20er/../deep%20er/a.jpg"):
        assert file_bytes(url, str(folder), 10_000) == PICTURE


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "..%2fsecret",
        "%2e%2e/secret",
        "out",
        "up/secret",
        "../allowed-too/b",
        "deep%20er",
        "pipe",
        "none",
        "a%00b",
    ],
)
def test_no_way_leads_out_of_the_folder(folder: Path, path: str) -> None:
    with pytest.raises(SourceError, match="no such file below the allowed folder"):
        file_bytes(f"file://{folder}/{path}", str(folder), 10_000)


def test_files_are_refused_elsewhere(folder: Path) -> None:
    with pytest.raises(SourceError, match="not allowed here"):
        file_bytes(f"file://{folder}/deep%20er/a.jpg", None, 10_000)
    with pytest.raises(SourceError, match="name no host, got other"):
        file_bytes(f"file://other{folder}/a.jpg", str(folder), 10_000)
    with pytest.raises(SourceError, match=f"100 bytes at most, got {len(PICTURE)}"):
        file_bytes(f"file://{folder}/deep%20er/a.jpg", str(folder), 100)


# ---- addresses


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "100.100.100.200", "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "168.63.129.16",
        "::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "::127.0.0.1", "2002:7f00:1::", "2002:a00:1::", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1",
        "2001:0:4136:e378:8000:63bf:80ff:fffe", "2001:db8::1",
    ],
)  # fmt: skip
def test_addresses_inside_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_addresses_outside_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


INSIDE = [
    "127.0.0.1", "localhost", "LOCALHOST.", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0", "127.1",
    "2130706433", "0x7f000001", "0177.0.0.1", "0x7f.1", "169.254.169.254", "[fe80::1]", "10.0.0.1",
]  # fmt: skip


@pytest.mark.parametrize("host", INSIDE)
def test_hosts_inside_are_refused_in_any_spelling(host: str) -> None:
    async def ask() -> str:
        return await Hosts().address_of(host, 80)

    with pytest.raises(AddressRefusedError, match=r"not public|cannot be found"):
        asyncio.run(ask())


def test_a_list_of_domains_lets_in_those_and_nobody_else() -> None:
    async def ask(host: str) -> str:
        return await Hosts(["LocalHost", "127.0.0.1"]).address_of(host, 80)

    assert asyncio.run(ask("localhost.")) in ("127.0.0.1", "::1")
    assert asyncio.run(ask("127.0.0.1")) == "127.0.0.1"
    for host in ("127.0.0.2", "2130706433", "example.org", "169.254.169.254"):
        with pytest.raises(AddressRefusedError, match="not one that is allowed"):
            asyncio.run(ask(host))


# ---- downloads


LIMITS = FetchLimits()


def downloaded(link: str, limits: FetchLimits = LIMITS) -> bytes:
    async def get() -> bytes:
        return bytes(await Downloads(Hosts(["127.0.0.1"]), limits).get(link, lambda _: None))

    return asyncio.run(get())


def test_a_link_is_downloaded_through_redirects(web: MediaServer) -> None:
    assert downloaded(f"{web.url}/exif6.jpg") == PICTURE
    assert downloaded(f"{web.url}/to/{web.url}/to/exif6.jpg".replace("/to/exif6", "/to//exif6")) == PICTURE


def test_the_checked_address_is_the_one_that_is_asked(web: MediaServer) -> None:
    """A name that resolves to another address the second time is never resolved a second time."""

    answers = ["127.0.0.1", "203.0.113.1"]

    class Turning(Hosts):
        async def address_of(self, host: str, port: int) -> str:
            assert (host, port) == ("turning.example", web.port)
            return answers.pop(0)

    async def get() -> bytes:
        return bytes(await Downloads(Turning()).get(f"http://turning.example:{web.port}/exif6.jpg", lambda _: None))

    assert asyncio.run(get()) == PICTURE
    assert web.asked[-1] == ("/exif6.jpg", f"turning.example:{web.port}")
    assert answers == ["203.0.113.1"]


@pytest.mark.parametrize("target", ["http://169.254.169.254/latest/meta-data", "http://localhost/", "http://[::1]/"])
def test_a_redirect_to_the_inside_is_refused(web: MediaServer, target: str) -> None:
    with pytest.raises(SourceError, match="not one that is allowed"):
        downloaded(f"{web.url}/to/{target}")


@pytest.mark.parametrize(
    "target", ["http://127.0.0.1/", "http://169.254.169.254/", "http://0/", "http://2130706433/", "http://[::1]/"]
)
def test_a_public_host_cannot_redirect_to_the_inside(web: MediaServer, target: str) -> None:
    class Outside(Hosts):
        async def address_of(self, host: str, port: int) -> str:
            return "127.0.0.1" if host == "public.example" else await super().address_of(host, port)

    async def get() -> bytes:
        return bytes(await Downloads(Outside()).get(f"http://public.example:{web.port}/to/{target}", lambda _: None))

    with pytest.raises(SourceError, match="its address is not public"):
        asyncio.run(get())


def test_a_name_with_one_address_inside_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> str:
        async def resolved(*_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
            return [(2, 1, 6, "", ("93.184.216.34", 80)), (2, 1, 6, "", ("10.0.0.7", 80))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
        return await Hosts().address_of("mixed.example", 80)

    with pytest.raises(AddressRefusedError, match="its address is not public"):
        asyncio.run(ask())


@pytest.mark.parametrize("target", ["http://[::1", "http://127.0.0.1:99999/", "//", "http://%00/"])
def test_a_redirect_to_what_is_no_link_is_refused(web: MediaServer, target: str) -> None:
    with pytest.raises(SourceError):
        downloaded(f"{web.url}/to/{target}")


def test_a_redirect_to_another_scheme_is_refused(web: MediaServer) -> None:
    with pytest.raises(SourceError, match="must be http:, https:, data: or file:, got file"):
        downloaded(f"{web.url}/to/file:///etc/hostname")


@pytest.mark.parametrize(
    ("path", "limits", "words"),
    [
        ("/none", FetchLimits(), "must answer 200, got 404"),
        ("/loop", FetchLimits(), "redirected 5 times at most"),
        ("/long/5000", FetchLimits(max_bytes=4999), "4999 bytes at most, got 5000"),
        ("/told/long", FetchLimits(), "268435456 bytes at most, got 1000000000000"),
        ("/slow", FetchLimits(timeout_s=0.3), "may take 0.3 s"),
        ("/gzip", FetchLimits(), "without a Content-Encoding"),
    ],
)
def test_a_download_beyond_its_bounds_is_refused(web: MediaServer, path: str, limits: FetchLimits, words: str) -> None:
    began_s = time.monotonic()
    with pytest.raises(SourceError, match=words):
        downloaded(web.url + path, limits)
    assert time.monotonic() - began_s < 5.0


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("ftp://127.0.0.1/a", "got ftp"),
        ("gopher://127.0.0.1/a", "got gopher"),
        ("/etc/hostname", "got none"),
        ("etc/hostname", "got none"),
        ("http://", "name a host"),
        ("http://user:word@127.0.0.1/a", "and no user"),
        ("http://[::1", "no URL"),
        ("http://127.0.0.1:1/a", "cannot be downloaded"),
        ("http://127.0.0.1:99999/a", "from 1 to 65535, got 99999"),
        ("http://xn--/a", "not one that is allowed"),
        ("javascript:alert(1)", "got javascript"),
    ],
)
def test_links_of_other_kinds_are_refused(link: str, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        downloaded(link)


def test_no_more_downloads_run_at_once_than_are_allowed(web: MediaServer) -> None:
    async def get() -> int:
        downloads = Downloads(Hosts(["127.0.0.1"]), FetchLimits(timeout_s=20.0, at_once=2))
        before = len(web.asked)
        tasks = [asyncio.create_task(downloads.get(f"{web.url}/slow", lambda _: None)) for _ in range(6)]
        while len(web.asked) - before < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        begun = len(web.asked) - before
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return begun

    assert asyncio.run(get()) == 2


# ---- through the gateway


@pytest.fixture(scope="module")
def media_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    (folder / "a.jpg").write_bytes(PICTURE)
    return folder


@pytest.fixture(scope="module")
def open_gateway(media_folder: Path) -> Iterator[LiveGateway]:
    flags = {"allowed_media_domains": "127.0.0.1", "allowed_local_media_path": str(media_folder)}
    with live_gateway(flags) as running:
        yield running


def test_links_reach_the_model(open_gateway: LiveGateway, media_folder: Path, web: MediaServer) -> None:
    links = (f"{web.url}/exif6.jpg", f"file://{media_folder}/a.jpg", data_url(PICTURE))
    answer = open_gateway.fresh().chat(messages=[user(*(part("image", link) for link in links))])
    assert answer.status_code == 200, answer.text
    [submit] = open_gateway.engine.submitted
    assert len({item.identity for item in submit.media}) == 1


@pytest.mark.parametrize(
    "link",
    ["http://127.0.0.1:8/a", "http://127.0.0.1/a", "http://169.254.169.254/", "file:///etc/hostname", "/etc/hostname"],
)
def test_a_refused_link_names_its_part(gateway: LiveGateway, link: str) -> None:
    answer = gateway.chat(messages=[user(part("image", data_url(PICTURE)), part("video", link))])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].content[1]")
    assert "root" not in answer.text


@pytest.mark.parametrize("path", ["/none", "/html"])
def test_a_link_without_a_picture_behind_it_names_its_part(
    open_gateway: LiveGateway, web: MediaServer, path: str
) -> None:
    answer = open_gateway.fresh().chat(messages=[user(part("image", web.url + path))])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].content[0]")


def test_a_client_that_leaves_during_a_download_leaves_nothing_behind(
    open_gateway: LiveGateway, web: MediaServer
) -> None:
    gateway = open_gateway.fresh()
    before = len(web.asked)
    with pytest.raises(Exception, match="timed out"):
        gateway.client.post(
            "/v1/chat/completions",
            json={"model": "dots3-note-tiny", "messages": [user(part("image", f"{web.url}/slow"))]},
            timeout=2.0,
        )
    assert len(web.asked) == before + 1
    wait_until(lambda: gateway.admission.num_inside == 0, 20.0)
    assert not gateway.engine.submitted
