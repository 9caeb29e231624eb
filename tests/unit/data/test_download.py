"""Downloads: from a server on this machine and from a file, whole or not at all."""

from __future__ import annotations

import hashlib
import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from mpisgd.data import FetchError, fetch
from mpisgd.data.__main__ import main
from mpisgd.data.download import CIFAR10, FASHION_MNIST, Source, sources

CONTENT = bytes(range(256)) * 3000
NAME = "cifar-10-binary.tar.gz"


class Server(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT, in the way that the first part of the path asks for."""

    requests: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        Server.requests.append(self.path)
        manner = self.path.split("/")[1]
        if manner == "missing":
            self.send_error(404)
            return
        content = b"x" + CONTENT[1:] if manner == "damaged" else CONTENT
        self.send_response(200)
        if manner != "unsized":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if manner == "broken" else content)

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.fixture(autouse=True)
def _small_cifar10(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published checksum becomes that of CONTENT; no proxy stands before the server."""
    checksum = hashlib.sha256(CONTENT).hexdigest()
    module = "mpisgd.data.download"
    monkeypatch.setattr(f"{module}.CIFAR10", tuple(s._replace(checksum=checksum) for s in CIFAR10))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    Server.requests.clear()


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


@pytest.mark.parametrize("manner", ["plain", "unsized"])
@pytest.mark.parametrize("name", [s.name for s in CIFAR10])
def test_download(tmp_path: Path, server: str, manner: str, name: str) -> None:
    progress: list[tuple[str, int, int | None]] = []
    folder = tmp_path / "new" / "folder"
    place = fetch(
        "cifar10", folder, url=f"{server}/{manner}/{name}", progress=lambda *p: progress.append(p)
    )
    assert place == folder
    assert files(folder) == [name]
    assert (folder / name).read_bytes() == CONTENT
    total = None if manner == "unsized" else len(CONTENT)
    assert progress[-1] == (name, len(CONTENT), total)
    assert [p[1] for p in progress] == sorted({p[1] for p in progress})


def test_download_from_a_file(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(CONTENT)
    fetch("cifar10", tmp_path / "d", url=(tmp_path / NAME).as_uri())
    assert (tmp_path / "d" / NAME).read_bytes() == CONTENT


def test_others_may_read_the_file(tmp_path: Path, server: str) -> None:
    fetch("cifar10", tmp_path, url=f"{server}/plain/{NAME}")
    (tmp_path / "ordinary").touch()
    assert (tmp_path / NAME).stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_what_is_there_is_not_fetched_again(tmp_path: Path, server: str) -> None:
    (tmp_path / NAME).write_bytes(CONTENT)
    fetch("cifar10", tmp_path, url=f"{server}/plain/{NAME}")
    assert Server.requests == []


def test_damaged_file_is_replaced(tmp_path: Path, server: str) -> None:
    (tmp_path / NAME).write_bytes(CONTENT[:-1])
    fetch("cifar10", tmp_path, url=f"{server}/plain/{NAME}")
    assert (tmp_path / NAME).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("manner", "message"),
    [
        ("missing", "could not be downloaded .HTTP 404 Not Found.; check the network"),
        ("broken", "ended after 384,000 bytes; wanted 768,000"),
        ("damaged", f"has the sha256 checksum {'[0-9a-f]' * 64}; wanted {'[0-9a-f]' * 64}"),
    ],
)
def test_failure_leaves_nothing(tmp_path: Path, server: str, manner: str, message: str) -> None:
    with pytest.raises(FetchError, match=message) as caught:
        fetch("cifar10", tmp_path / "new" / "folder", url=f"{server}/{manner}/{NAME}")
    assert f"{server}/{manner}/{NAME}" in str(caught.value)
    assert files(tmp_path) == []


def test_failure_keeps_what_was_there(tmp_path: Path, server: str) -> None:
    (tmp_path / NAME).write_bytes(b"older")
    with pytest.raises(FetchError):
        fetch("cifar10", tmp_path, url=f"{server}/damaged/{NAME}")
    assert (tmp_path / NAME).read_bytes() == b"older"


def test_checksum_error_names_both(tmp_path: Path, server: str) -> None:
    with pytest.raises(FetchError) as caught:
        fetch("cifar10", tmp_path, url=f"{server}/damaged/{NAME}")
    assert hashlib.sha256(b"x" + CONTENT[1:]).hexdigest() in str(caught.value)
    assert hashlib.sha256(CONTENT).hexdigest() in str(caught.value)


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"could not be downloaded \(Connection refused\); check"):
        fetch("cifar10", tmp_path / "new" / "folder", url=f"http://127.0.0.1:9/{NAME}")
    assert files(tmp_path) == []


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"could not be downloaded \(No such file or directory\)"):
        fetch("cifar10", tmp_path / "new", url=(tmp_path / NAME).as_uri())
    assert files(tmp_path) == []


def test_failure_keeps_a_folder_that_was_there(tmp_path: Path, server: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FetchError):
        fetch("fashion-mnist", tmp_path / "empty", url=f"{server}/missing/")
    assert files(tmp_path) == ["empty"]


def test_interrupt_leaves_nothing(tmp_path: Path, server: str) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("cifar10", tmp_path, url=f"{server}/plain/{NAME}", progress=interrupt)
    assert files(tmp_path) == []


def test_folder_that_cannot_be_made(tmp_path: Path, server: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FetchError, match="could not be saved"):
        fetch("cifar10", tmp_path / "file" / "under", url=f"{server}/plain/{NAME}")


def test_several_at_once(tmp_path: Path, server: str) -> None:
    errors: list[BaseException] = []

    def one() -> None:
        try:
            fetch("cifar10", tmp_path, url=f"{server}/plain/{NAME}")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert files(tmp_path) == [NAME]
    assert (tmp_path / NAME).read_bytes() == CONTENT


def test_fashion_mnist_comes_in_four_files(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checksum = hashlib.md5(CONTENT).hexdigest()
    small = tuple(s._replace(checksum=checksum) for s in FASHION_MNIST)
    monkeypatch.setattr("mpisgd.data.download.FASHION_MNIST", small)
    fetch("fashion-mnist", tmp_path, url=f"{server}/plain/")
    assert files(tmp_path) == [
        "fashion-mnist",
        "fashion-mnist/t10k-images-idx3-ubyte.gz",
        "fashion-mnist/t10k-labels-idx1-ubyte.gz",
        "fashion-mnist/train-images-idx3-ubyte.gz",
        "fashion-mnist/train-labels-idx1-ubyte.gz",
    ]


def test_sources_without_a_mirror() -> None:
    [cifar] = sources("cifar10", None)
    assert cifar.url == f"https://www.cs.toronto.edu/~kriz/{NAME}"
    assert [s.name for s in sources("fashion-mnist", None)] == [s.name for s in FASHION_MNIST]


def test_published_checksums_are_complete() -> None:
    lengths = {"sha256": 64, "md5": 32}
    published: tuple[Source, ...] = (*CIFAR10, *FASHION_MNIST)
    for source in published:
        assert len(source.checksum) == lengths[source.algorithm]
        assert set(source.checksum) <= set("0123456789abcdef")
    assert len({s.checksum for s in published}) == 6


@pytest.mark.parametrize(
    ("name", "url", "message"),
    [
        (
            "digits",
            None,
            "'digits' needs no download; those that can be fetched are cifar10 and fa",
        ),
        ("nosuch", None, "'nosuch' is no set that can be fetched; those that can"),
        ("cifar10", "ftp://host/" + NAME, "no http, https or file address"),
        ("cifar10", "/plain/path/" + NAME, "no http, https or file address"),
        ("cifar10", "http://host/other.tar.gz", "does not end in cifar-10-binary.tar.gz or"),
    ],
)
def test_requests_that_make_no_sense(
    tmp_path: Path, name: str, url: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fetch(name, tmp_path, url=url)
    assert files(tmp_path) == []


def test_command(tmp_path: Path, server: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fetch", "cifar10", "--data-dir", str(tmp_path / "d")]
    assert main([*arguments, "--url", f"{server}/plain/{NAME}"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"cifar10: in {tmp_path / 'd'}\n"
    assert shown.err == f"fetch: {NAME} 0.7 of 0.7 MiB\n"  # no terminal: one line
    assert files(tmp_path / "d") == [NAME]


def test_command_uses_the_environment(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPISGD_DATA", str(tmp_path / "env"))
    assert main(["fetch", "cifar10", "--url", f"{server}/plain/{NAME}"]) == 0
    assert files(tmp_path / "env") == [NAME]


@pytest.mark.parametrize("manner", ["missing", "broken", "damaged"])
def test_command_fails_in_one_line(
    tmp_path: Path, server: str, manner: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{server}/{manner}/{NAME}"
    assert main(["fetch", "cifar10", "--data-dir", str(tmp_path / "d"), "--url", url]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"fetch: {url} ")
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "command"),
        (["fetch"], "NAME"),
        (["fetch", "digits"], "'digits' needs no download"),
        (["fetch", "synthetic"], "'synthetic' needs no download"),
        (["fetch", "nosuch"], "'nosuch' is no set .* fetched are cifar10 and fashion-mnist"),
        (["fetch", "cifar10", "--nosuch"], "--nosuch"),
        (["unpack", "cifar10"], "unpack"),
    ],
)
@pytest.mark.parametrize("rank", ["0", "1"])
def test_command_refuses_what_it_does_not_know(
    arguments: list[str],
    message: str,
    rank: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    if rank == "0":
        assert re.fullmatch(f"mpisgd.data: error: .*{message}.*\n", shown.err)
    else:
        assert shown.err == ""


@pytest.mark.parametrize("rank", ["0", "1"])
def test_command_has_a_help(
    rank: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
    with pytest.raises(SystemExit) as caught:
        main(["fetch", "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for text in ("--data-dir PATH", "cifar10 or fashion-mnist", "example: python -m mpisgd.data"):
        assert (text in shown) == (rank == "0")
