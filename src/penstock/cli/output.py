"""What commands print: a table for people, JSON for programs, plain columns in a pipe."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.cli.failure import Failed

_STANDARD_FILES = 3
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


class OutputClosed(Exception):
    """Who reads the pipe has seen enough. Not an OSError: the connection to the broker is fine."""


def open_closed_files() -> None:
    """What was closed for this process among its standard files is /dev/null: or the next file that is opened, which may
    be a log, would be where errors are written to."""
    for descriptor in range(_STANDARD_FILES):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def write_lines(lines: Sequence[bytes]) -> None:
    """Now, and all of them. Raises OutputClosed, or Failed when there is no room."""
    try:
        sys.stdout.buffer.writelines(lines)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        _discard_output()
        raise OutputClosed from None
    except OSError as error:
        raise _output_failed(error) from None


@contextlib.contextmanager
def all_written() -> Iterator[None]:
    """What was printed must have been taken before a command says that all went well. Raises Failed if it was not."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
    except OSError as error:
        if error.filename is not None or error.errno not in _NO_ROOM:
            raise
        raise _output_failed(error) from None


def _output_failed(error: OSError) -> Failed:
    _discard_output()
    return Failed(f"cannot write output: {error.strerror}")


def _discard_output() -> None:
    """What is still buffered has nowhere to go, and Python would try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(value: Any) -> None:
    """One JSON document, indented: readable, and jq does not mind."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def print_table(head: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> None:
    """Numbers to the right; on a terminal with rules and colour, in a pipe aligned text that is never cut. None is a dash:
    a pipe can count its columns."""
    cells = [["-" if cell is None else _text(cell) for cell in row] for row in rows]
    right = [_are_numbers([row[at] for row in rows]) for at in range(len(head))]
    if sys.stdout.isatty():
        _print_rich(head, cells, right, title)
    else:
        _print_plain(head, cells, right)


def _are_numbers(cells: list[Any]) -> bool:
    """Whether a column holds numbers, with or without gaps."""
    return any(cell is not None for cell in cells) and all(cell is None or isinstance(cell, int) for cell in cells)


def _text(cell: Any) -> str:
    return str(cell).lower() if isinstance(cell, bool) else str(cell)


def _print_rich(head: Sequence[str], rows: list[list[str]], right: list[bool], title: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left")
    for name, to_the_right in zip(head, right, strict=True):
        table.add_column(name, justify="right" if to_the_right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def _print_plain(head: Sequence[str], rows: list[list[str]], right: list[bool]) -> None:
    lines = [list(head), *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    for line in lines:
        columns = zip(line, widths, right, strict=True)
        print("  ".join(cell.rjust(width) if r else cell.ljust(width) for cell, width, r in columns).rstrip())


def note(text: str) -> None:
    """A line beside the output: on stderr, so that a pipe stays clean."""
    print(text, file=sys.stderr)


def counted(count: int, noun: str) -> str:
    """ "1 record", "2,000 records"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
