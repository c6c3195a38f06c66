"""Where a table lies: a local path, or any URL that pyarrow or fsspec opens.

A file is there whole or not at all: locally it is written under a name that readers of tables pass over, flushed and
renamed; object stores show an object when it is closed. `create` makes a file only if there is none of that name, which
is what commits of the parquet format rest on. pyarrow's own object stores cannot be asked for that: there a second
writer is kept away by the table's lock alone.

A place can be pickled; whoever gets it opens the filesystem for himself.
"""

from __future__ import annotations

import contextlib
import functools
import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from penstock.lake.errors import ArchiveError

_UNFINISHED = ".penstock-tmp"


class Found(NamedTuple):
    """A file of a table."""

    name: str
    """Below the table's own path."""
    bytes: int
    changed_at_s: float


class Opened(NamedTuple):
    files: Any
    """A pyarrow FileSystem."""
    path: str
    spec: Any
    """The fsspec filesystem behind it, if it is one."""


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of one table."""

    url: str
    """As it was given; a local path is made absolute by `place_of`."""

    @property
    def is_local(self) -> bool:
        return isinstance(_opened(self.url).files, fs.LocalFileSystem)

    @property
    def is_shared(self) -> bool:
        """Whether other processes see the same files."""
        return not self.url.startswith("memory:")

    @property
    def files(self) -> Any:
        return _opened(self.url).files

    def path(self, name: str = "") -> str:
        """What the filesystem calls a file of the table."""
        base = _opened(self.url).path
        return f"{base}/{name}" if name else base

    # ------------------------------------------------------------------------------------------------ small files

    def read(self, name: str) -> bytes | None:
        """The whole file; None if there is none."""
        with self._telling("read", name):
            if self.files.get_file_info(self.path(name)).type == fs.FileType.NotFound:
                return None
            try:
                with self.files.open_input_stream(self.path(name)) as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        """Replaces the file, if it was there."""
        with self.sink(name) as sink:
            sink.write(data)

    def create(self, name: str, data: bytes) -> bool:
        """False, and nothing done, if there is one of that name already."""
        opened = _opened(self.url)
        with self._telling("write", name):
            if self.is_local:
                return self._link(name, data)
            if opened.spec is not None:
                return _created(opened.spec, self.path(name), data)
            if self.read(name) is not None:
                return False
            self.write(name, data)
            return self.read(name) == data

    def _link(self, name: str, data: bytes) -> bool:
        hidden = _hidden(name)
        self.write(hidden, data)
        try:
            os.link(self.path(hidden), self.path(name))
        except FileExistsError:
            return False
        finally:
            os.unlink(self.path(hidden))
        _flush_folder(self.path(name))
        return True

    # ------------------------------------------------------------------------------------------------ large files

    @contextlib.contextmanager
    def sink(self, name: str) -> Iterator[Any]:
        """Something to write to; the file appears when the block ends well, and not otherwise."""
        with self._telling("write", name):
            path = self.path(name)
            self.files.create_dir(os.path.dirname(path), recursive=True)
            if not self.is_local:
                try:
                    with self.files.open_output_stream(path) as stream:
                        yield stream
                except BaseException:
                    # A store takes a stream that is closed for a whole file.
                    with contextlib.suppress(OSError, pa.ArrowException):
                        self.files.delete_file(path)
                    raise
                return
            hidden = self.path(_hidden(name))
            try:
                with pa.OSFile(hidden, "wb") as file:
                    yield file
                _flush(hidden)
                os.replace(hidden, path)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(hidden)
                raise
            _flush_folder(path)

    @contextlib.contextmanager
    def source(self, name: str) -> Iterator[Any]:
        """A file to be read at any place of it."""
        with self._telling("read", name), self.files.open_input_file(self.path(name)) as file:
            yield file

    # ------------------------------------------------------------------------------------------------ many files

    def found(self, folder: str = "") -> list[Found]:
        """Every file below a folder of the table; none if the folder is not there."""
        opened = _opened(self.url)
        with self._telling("list", folder):
            if opened.spec is not None:
                opened.spec.invalidate_cache()
            selector = fs.FileSelector(self.path(folder), allow_not_found=True, recursive=True)
            start = len(opened.path) + 1
            infos = self.files.get_file_info(selector)
            return sorted(
                Found(info.path[start:], info.size, (info.mtime_ns or 0) / 1e9)
                for info in infos
                if info.type == fs.FileType.File
            )

    def bytes_of(self, name: str) -> int:
        with self._telling("read", name):
            size: int = self.files.get_file_info(self.path(name)).size
            return size

    def delete(self, names: Iterable[str]) -> None:
        """Those that are there."""
        for name in names:
            with self._telling("delete", name), contextlib.suppress(FileNotFoundError):
                self.files.delete_file(self.path(name))

    def clear_unfinished(self, before_s: float) -> int:
        """Take away what writers that were killed left half written; how many files that was."""
        names = [one.name for one in self.found() if one.changed_at_s < before_s and _is_unfinished(one.name)]
        self.delete(names)
        return len(names)

    @contextlib.contextmanager
    def _telling(self, what: str, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            shown = f"{self.url}/{name}" if name else self.url
            reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
            raise ArchiveError(f"cannot {what} {shown}: {reason}") from None


def place_of(url: str) -> Place:
    """Raises ArchiveError when nothing installed opens such a URL."""
    if not url:
        raise ArchiveError("the path of the table is empty")
    text = url.rstrip("/") or "/"
    if "://" not in text:
        text = str(Path(text).expanduser().absolute())
    _opened(text)
    return Place(text)


@functools.lru_cache(maxsize=64)
def _opened(url: str) -> Opened:
    try:
        files, path = fs.FileSystem.from_uri(url)
        return Opened(files, path.rstrip("/"), None)
    except (OSError, pa.ArrowException) as error:
        first = str(error).split("\n")[0]
    try:
        import fsspec
    except ImportError:
        raise ArchiveError(
            f"{url}: {first}; `pip install 'penstock-broker[lake]'` adds support for more kinds of URLs"
        ) from None
    try:
        spec, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        # what pyarrow knows and cannot open is its to explain
        raise ArchiveError(f"{url}: {error if 'Unrecognized' in first else first}") from None
    return Opened(fs.PyFileSystem(fs.FSSpecHandler(spec)), path.rstrip("/"), spec)


def _created(spec: Any, path: str, data: bytes) -> bool:
    try:
        spec.makedirs(os.path.dirname(path), exist_ok=True)
        spec.pipe_file(path, data, mode="create")
    except FileExistsError:
        return False
    return True


def _hidden(name: str) -> str:
    """Beside the file; readers of tables pass over names that begin with a dot or an underscore."""
    folder, _, last = name.rpartition("/")
    hidden = f".{last}.{uuid.uuid4().hex[:8]}{_UNFINISHED}"
    return f"{folder}/{hidden}" if folder else hidden


def _is_unfinished(name: str) -> bool:
    last = name.rpartition("/")[2]
    return last.startswith(".") and last.endswith(_UNFINISHED)


def _flush(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_folder(path: str) -> None:
    _flush(os.path.dirname(path))
