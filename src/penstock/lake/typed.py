"""Typed columns from the values of records, and `_error` for those that do not parse. Nothing here stops an archive.

A field becomes a column when it is first seen, with the kind of what it holds: a boolean, a long, a double, or a string;
objects and arrays are strings of JSON. A column keeps its kind. A value that does not fit it leaves the cell empty and
the reason in `_error`; the raw value is in the row anyway. Fields whose names differ in case alone share a column, since
most engines cannot tell them apart.
"""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa

from penstock.lake.columns import COLUMNS_MAX, Kinds, arrow_type, column_name, schema_of, wider

LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
REASON_MAX: Final = 300
"""Characters of an error: a value of a megabyte must not be there twice."""


class Unreadable(ValueError):
    """The value of one record cannot be read; the text goes into its row."""


class ValueReader(Protocol):
    """One way to read a value."""

    declared: Kinds
    """Columns that are known before the first record is."""

    def fields(self, value: bytes) -> Mapping[str, Any]:
        """Raises Unreadable."""
        ...


class Grown(Exception):
    """A field that no column holds yet, or a new column that must be wider than was thought."""


class Typing:
    """Turns batches of records into rows with typed columns."""

    def __init__(self, reader: ValueReader, known: Kinds, grown: Kinds) -> None:
        """`known` are the columns that the table has, whose kinds are fixed; `grown` those of this commit."""
        self._reader = reader
        self._known = known
        self.grown = dict(grown)
        for name, kind in reader.declared.items():
            if name.lower() not in {one.lower() for one in (*known, *self.grown)}:
                self.grown[name] = kind
        self._columns: dict[str, str] = {}
        """Fields to columns, as far as they were seen."""
        self.unreadable = 0

    @property
    def kinds(self) -> dict[str, str]:
        return {**self._known, **self.grown}

    @property
    def schema(self) -> pa.Schema:
        return schema_of(self.kinds, with_error=True)

    def rows(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows with more columns. Raises Grown when the schema is not wide enough for them."""
        kinds = self.kinds
        cells: dict[str, list[Any]] = {name: [None] * records.num_rows for name in kinds}
        errors: list[str | None] = [None] * records.num_rows
        for at, value in enumerate(records.column("value").to_pylist()):
            if value is None:
                continue
            try:
                fields = self._reader.fields(value)
            except Unreadable as error:
                errors[at] = str(error)[:REASON_MAX]
                continue
            misfits = []
            for field, cell in fields.items():
                if cell is None:
                    continue
                name = self._column(field)
                if name is None:
                    if len(kinds) < COLUMNS_MAX:
                        raise Grown(field)
                    continue
                try:
                    cells[name][at] = fitted(cell, kinds[name])
                except Unreadable as error:
                    if name in self.grown and name not in self._reader.declared:
                        raise Grown(field) from None
                    misfits.append(f"{field}: {error}")
            if misfits:
                errors[at] = "; ".join(misfits)[:REASON_MAX]
        self.unreadable += sum(error is not None for error in errors)
        arrays = [pa.array(cells[name], arrow_type(kind)) for name, kind in kinds.items()]
        return pa.RecordBatch.from_arrays(
            [*records.columns, *arrays, pa.array(errors, pa.string())], schema=schema_of(kinds, with_error=True)
        )

    def learn(self, records: pa.RecordBatch) -> None:
        """Look for fields alone: which columns there must be, and of which kind."""
        for value in records.column("value").to_pylist():
            if value is None:
                continue
            try:
                fields = self._reader.fields(value)
            except Unreadable:
                continue
            for field, cell in fields.items():
                if cell is not None:
                    self._learn(field, cell)

    def _learn(self, field: str, cell: Any) -> None:
        name = self._column(field)
        if name is None:
            if len(self._known) + len(self.grown) >= COLUMNS_MAX:
                return
            name = column_name(field)
            self.grown[name] = seen_kind(cell)
            self._columns[field] = name
        elif name in self.grown and name not in self._reader.declared:
            try:
                fitted(cell, self.grown[name])
            except Unreadable:
                self.grown[name] = wider(self.grown[name], seen_kind(cell))

    def _column(self, field: str) -> str | None:
        name = self._columns.get(field)
        if name is None:
            wanted = column_name(field).lower()
            name = next((one for one in (*self._known, *self.grown) if one.lower() == wanted), None)
            if name is not None:
                self._columns[field] = name
        return name


def seen_kind(cell: Any) -> str:
    if isinstance(cell, bool):
        return "boolean"
    if isinstance(cell, int):
        return "long" if LONG_MIN <= cell <= LONG_MAX else "string"
    if isinstance(cell, float):
        return "double"
    return "string"


def fitted(cell: Any, kind: str) -> Any:
    """The cell as its column holds it; raises Unreadable when it does not."""
    fits = cell
    match kind:
        case "string":
            return cell if isinstance(cell, str) else _json(cell)
        case "long":
            if isinstance(cell, float) and cell.is_integer():
                fits = int(cell)
            is_right = isinstance(fits, int) and not isinstance(fits, bool) and LONG_MIN <= fits <= LONG_MAX
        case "double":
            is_right = isinstance(cell, int | float) and not isinstance(cell, bool)
            if is_right:
                try:
                    fits = float(cell)
                except OverflowError:
                    is_right = False
        case "boolean":
            is_right = isinstance(cell, bool)
        case "binary":
            is_right = isinstance(cell, bytes)
        case "timestamp":
            fits = _moment(cell)
            is_right = fits is not None
        case "date":
            fits = _date(cell)
            is_right = fits is not None
        case _:
            fits, is_right = _decimal(cell, kind)
    if not is_right:
        raise Unreadable(f"{_shown(cell)} is not a valid {kind}")
    return fits


def _moment(cell: Any) -> datetime.datetime | None:
    if isinstance(cell, str):
        try:
            cell = datetime.datetime.fromisoformat(cell)
        except ValueError:
            return None
    if not isinstance(cell, datetime.datetime):
        return None
    # A time that says no zone is taken for UTC, like the days of the table.
    return cell if cell.tzinfo is not None else cell.replace(tzinfo=datetime.UTC)


def _date(cell: Any) -> datetime.date | None:
    if isinstance(cell, str):
        try:
            return datetime.date.fromisoformat(cell)
        except ValueError:
            return None
    is_date = isinstance(cell, datetime.date) and not isinstance(cell, datetime.datetime)
    return cell if is_date else None


def _decimal(cell: Any, kind: str) -> tuple[Any, bool]:
    if isinstance(cell, bool) or not isinstance(cell, int | float | str | decimal.Decimal):
        return None, False
    try:
        number = decimal.Decimal(str(cell))
        pa.scalar(number, arrow_type(kind))
    except (decimal.InvalidOperation, pa.ArrowInvalid, ValueError):
        return None, False
    return number, True


def _json(cell: Any) -> str:
    try:
        return msgspec.json.encode(cell).decode()
    except (OverflowError, TypeError, msgspec.MsgspecError):
        # Numbers of more than 64 bits.
        return json.dumps(cell, default=str)


def _shown(cell: Any) -> str:
    text = repr(cell)
    return text if len(text) <= 60 else f"{text[:57]}..."


class JsonReader:
    """Values that are JSON objects."""

    def __init__(self, declared: Kinds) -> None:
        self.declared: Kinds = {column_name(field): kind for field, kind in declared.items()}
        self._decoder = msgspec.json.Decoder()

    def fields(self, value: bytes) -> Mapping[str, Any]:
        try:
            decoded = self._decoder.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Unreadable(f"not JSON: {error}") from None
        if not isinstance(decoded, dict):
            raise Unreadable(f"expected a JSON object, not {type(decoded).__name__}")
        return decoded
