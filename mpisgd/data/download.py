"""Downloads a data set: checked, and there either whole or not at all.

The file is written under a temporary name of its own in the same folder and renamed when it is
complete, so several processes may fetch the same set at once: each renames a good file over the
others' equal one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import IO, NamedTuple, TypeAlias

from .members import WITHOUT_FILES

TIMEOUT_S = 60.0  # without a byte
CHUNK_BYTES = 1 << 18

Progress: TypeAlias = (
    "Callable[[str, int, int | None], None]"  # file name, bytes so far, bytes in all if known
)


class FetchError(OSError):
    """A download that did not succeed; nothing of it is left behind."""


class Source(NamedTuple):
    """One published file."""

    url: str
    algorithm: str  # of hashlib
    checksum: str  # hexadecimal
    folder: str = ""  # under the data directory

    @property
    def name(self) -> str:
        """The file's name, here and there."""
        return self.url.rsplit("/", 1)[-1]


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"

# The first file of each set is the one that `fetch` takes by itself where a set is published in
# several forms.
CIFAR10 = (
    Source(
        _TORONTO + "cifar-10-binary.tar.gz",
        "sha256",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    Source(
        _TORONTO + "cifar-10-python.tar.gz",
        "sha256",
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    ),
)
FASHION_MNIST = tuple(
    Source(_ZALANDO + name, "md5", checksum, "fashion-mnist")
    for name, checksum in (
        ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    )
)
FETCHABLE = ("cifar10", "fashion-mnist")


def fetch(
    name: str,
    directory: str | os.PathLike[str],
    *,
    url: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Download a set into `directory`, unless it is there already.

    Not collective: on several ranks let one per node call it. Calls at the same time are safe.
    Returns the directory to load the set from.

    Args:
        name: "cifar10" or "fashion-mnist".
        directory: The data directory; made if it does not exist.
        url: A mirror: of cifar10 the whole address of either .tar.gz, of fashion-mnist the folder
            of its four files. The checksums stay the published ones.
        progress: Called after every piece.

    Raises:
        ValueError: for a name or an address that cannot be fetched.
        FetchError: if the download fails or its checksum is wrong; then no file and no new empty
            folder is left behind.
    """
    target = Path(directory)
    for source in sources(name, url):
        _fetch_file(source, target / source.folder / source.name, progress or _silent)
    return target


def check_name(name: str) -> None:
    """Raise ValueError unless `name` is a set that can be fetched."""
    if name in FETCHABLE:
        return
    why = "needs no download" if name in WITHOUT_FILES else "is no set that can be fetched"
    raise ValueError(
        f"fetch: {name!r} {why}; those that can be fetched are {' and '.join(FETCHABLE)}"
    )


def sources(name: str, url: str | None) -> tuple[Source, ...]:
    """The files to download for `name`, from the mirror `url` if one is given."""
    check_name(name)
    if url is not None and urllib.parse.urlsplit(url).scheme not in ("http", "https", "file"):
        raise ValueError(f"fetch: {url!r} is no http, https or file address; correct --url")
    if name == "fashion-mnist":
        if url is None:
            return FASHION_MNIST
        return tuple(s._replace(url=f"{url.rstrip('/')}/{s.name}") for s in FASHION_MNIST)
    if url is None:
        return CIFAR10[:1]
    published = {source.name: source for source in CIFAR10}
    wanted = url.rsplit("/", 1)[-1]
    if wanted not in published:
        raise ValueError(
            f"fetch: {url!r} does not end in {' or '.join(published)}; the checksum belongs to"
            " these files; correct --url"
        )
    return (published[wanted]._replace(url=url),)


def _silent(name: str, done: int, total: int | None) -> None:
    """No progress line."""


def _fetch_file(source: Source, target: Path, progress: Progress) -> None:
    try:
        with _folder(target.parent):
            if target.is_file() and _checksum(target, source.algorithm) == source.checksum:
                return
            _download(source, target, progress)
    except FetchError:
        raise
    except OSError as error:
        raise FetchError(
            f"fetch: {source.url} could not be saved as {target} ({_reason(error)}); check the"
            " folder, or name another with --data-dir"
        ) from error


@contextlib.contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """Make the folder; if the block fails, remove what was made of it and is empty."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # not empty: somebody uses it
            for place in made:
                place.rmdir()
        raise


@contextlib.contextmanager
def _downloading(source: Source) -> Iterator[None]:
    """What goes wrong in the block is the download's fault, not the folder's."""
    try:
        yield
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the server's answer, with the connection
        raise FetchError(
            f"fetch: {source.url} could not be downloaded ({_reason(error)}); check the network, or"
            " name a mirror with --url"
        ) from error


def _reason(error: BaseException) -> str:
    """Why, without Python's own wrapping."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}".strip()
    if isinstance(error, urllib.error.URLError):
        inner = error.reason
        return _reason(inner) if isinstance(inner, BaseException) else str(inner)
    text = error.strerror if isinstance(error, OSError) else None
    return text or str(error) or type(error).__name__


def _checksum(path: Path, algorithm: str) -> str:
    digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _download(source: Source, target: Path, progress: Progress) -> None:
    """Write to a name of our own, check, sync, rename; whatever goes wrong, remove our own file."""
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        with part.open("xb") as file:
            found = _copy(source, file, progress)
            if found != source.checksum:
                raise FetchError(
                    f"fetch: {source.url} has the {source.algorithm} checksum {found}; wanted"
                    f" {source.checksum}; the download is damaged or not the published file, try"
                    " again or name a mirror with --url"
                )
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _copy(source: Source, file: IO[bytes], progress: Progress) -> str:
    """Everything behind the address into `file`; returns its checksum."""
    digest, done = hashlib.new(source.algorithm), 0
    with _downloading(source):
        response = urllib.request.urlopen(source.url, timeout=TIMEOUT_S)  # schemes: see sources()
    with response:
        with _downloading(source):
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
        while chunk := _read(response, source):
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            progress(source.name, done, total)
    if total is not None and done != total:
        raise FetchError(
            f"fetch: {source.url} ended after {done:,} bytes; wanted {total:,}; the connection"
            " broke, try again"
        )
    return digest.hexdigest()


def _read(response: IO[bytes], source: Source) -> bytes:
    with _downloading(source):
        return response.read(CHUNK_BYTES)


def _sync_folder(folder: Path) -> None:
    """Make the rename last through a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
