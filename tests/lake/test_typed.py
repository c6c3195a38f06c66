from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.archiver import merged
from penstock.lake.avro import AvroReader
from penstock.lake.columns import RECORD, wider
from penstock.lake.engines import LocalEngine
from penstock.lake.errors import ArchiveError
from penstock.lake.opening import open_table
from penstock.lake.settings import Values, ValueSettings
from penstock.lake.tables import dataset
from penstock.lake.typed import Grown, JsonReader, Typing
from tests.lake.lake import archive, natively, rows
from tests.lake.topics import Topic

JSON = ValueSettings(Values.JSON)


def typed(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    """The cells of some columns, in the order of partition and offset."""
    in_order = table.sort_by([("partition", "ascending"), ("offset", "ascending")])
    return list(zip(*(in_order.column(name).to_pylist() for name in names), strict=True))


def test_fields_of_json_become_columns_and_what_does_not_parse_an_error(
    topic: Topic, tmp_path: Path, format_: str
) -> None:
    topic.write(
        [
            b'{"id": 1, "paid": true, "price": 2.5, "name": "a", "tags": ["x"], "key": "k"}',
            b"no json",
            b'{"id": "one"}',
            None,
            b"[1]",
            b'{"id": 2, "price": 3}',
            b"\xff\xfe",
        ]
    )
    (step,) = archive(topic, tmp_path / "table", format_, value=JSON)
    table = natively(tmp_path / "table")
    # `id` holds numbers and a word: a string takes both
    assert typed(table, "id", "paid", "price", "name", "tags", "value_key") == [
        ("1", True, 2.5, "a", '["x"]', "k"),
        (None,) * 6,
        ("one", None, None, None, None, None),
        (None,) * 6,
        (None,) * 6,
        ("2", None, 3.0, None, None, None),
        (None,) * 6,
    ]
    errors = [error for (error,) in typed(table, "_error")]
    assert [error is not None for error in errors] == [False, True, False, False, True, False, True]
    assert "not JSON" in errors[1]
    assert "expected a JSON object, not list" in errors[4]
    assert step.unreadable == 3
    assert rows(tmp_path / "table") == topic.rows()


def test_a_table_goes_on_under_a_schema_that_grew_and_reads_as_one(topic: Topic, tmp_path: Path, format_: str) -> None:
    topic.write([b'{"id": 1}', b'{"id": 2}'])
    archive(topic, tmp_path / "table", format_, value=JSON)
    topic.write([b'{"id": 3, "city": "Bern"}', b'{"id": "four", "city": 4}', b'{"ID": 5}'])
    archive(topic, tmp_path / "table", format_)
    for table in (natively(tmp_path / "table"), dataset(open_table(str(tmp_path / "table"))).to_table()):
        assert typed(table, "id", "city") == [(1, None), (2, None), (3, "Bern"), (None, "4"), (5, None)]
        assert [error for (error,) in typed(table, "_error")] == [
            None,
            None,
            None,
            "id: 'four' is not a valid long",
            None,
        ]


def test_a_raw_table_can_begin_to_be_typed(topic: Topic, tmp_path: Path, format_: str) -> None:
    topic.write([b'{"id": 1}'])
    archive(topic, tmp_path / "table", format_)
    topic.write([b'{"id": 2}'])
    archive(topic, tmp_path / "table", format_, value=JSON)
    assert typed(natively(tmp_path / "table"), "id", "_error") == [(None, None), (2, None)]


def test_workers_that_meet_a_new_field_differently_agree(topic: Topic, tmp_path: Path, format_: str) -> None:
    topic.write([b'{"n": 1, "Name": "a"}'], partition=0)
    topic.write([b'{"n": 1.5, "name": "b"}'], partition=1)
    topic.write([b'{"n": "x"}'], partition=2)
    archive(topic, tmp_path / "table", format_, value=JSON, engine=LocalEngine(3))
    table = natively(tmp_path / "table")
    assert typed(table, "n", "Name") == [("1", "a"), ("1.5", "b"), ("x", None)]
    assert "name" not in table.column_names


def test_a_type_that_was_named_is_kept_from_the_start(topic: Topic, tmp_path: Path, format_: str) -> None:
    value = ValueSettings(Values.JSON, {"price": "double", "at": "timestamp", "sum": "decimal(10,2)", "on": "date"})
    topic.write(
        [
            b'{"price": 1, "at": "2026-01-31T12:00:00+01:00", "sum": "12.50", "on": "2026-01-31"}',
            b'{"price": 1.5, "at": "soon", "sum": 1.25}',
        ]
    )
    archive(topic, tmp_path / "table", format_, value=value)
    table = natively(tmp_path / "table")
    assert [price for (price,) in typed(table, "price")] == [1.0, 1.5]
    first, second = typed(table, "at", "sum", "on", "_error")
    assert first[0].isoformat() == "2026-01-31T11:00:00+00:00"
    assert (str(first[1]), str(second[1])) == ("12.50", "1.25")
    assert first[2].isoformat() == "2026-01-31"
    assert (second[0], second[3]) == (None, "at: 'soon' is not a valid timestamp")


def test_objects_used_as_maps_do_not_give_a_column_a_key(topic: Topic, tmp_path: Path) -> None:
    topic.write([json.dumps({f"user{at}-{n}": n for n in range(40)}).encode() for at in range(20)])
    archive(topic, tmp_path / "table", value=JSON)
    assert len(open_table(str(tmp_path / "table")).state().kinds) == 500
    assert rows(tmp_path / "table") == topic.rows()


ORDER_1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
ORDER_2 = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "lines", "type": {"type": "array", "items": "int"}},
    ],
}


def avro(schema: dict[str, Any], record: dict[str, Any], schema_id: int | None = None) -> bytes:
    fastavro = pytest.importorskip("fastavro")
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, record)
    head = b"" if schema_id is None else b"\0" + schema_id.to_bytes(4, "big")
    return head + stream.getvalue()


def test_avro_of_several_schemas_becomes_one_table(topic: Topic, tmp_path: Path, format_: str) -> None:
    second = {"id": 2, "note": "n", "at": 1_700_000_000_000, "lines": [1, 2]}
    topic.write([avro(ORDER_1, {"id": 1}, 7), avro(ORDER_2, second, 9), b"junk", b"\0\0\0\0\7"])
    first_only = ValueSettings(Values.AVRO, {}, {"7": json.dumps(ORDER_1)})
    archive(topic, tmp_path / "table", format_, value=first_only)
    table = natively(tmp_path / "table")
    errors = [error for (error,) in typed(table, "_error")]
    assert errors[0] is None
    assert "unknown Avro schema 9: add it with --schema 9=FILE" in errors[1]
    assert "no schema id" in errors[2]
    assert "the value does not match the Avro schema" in errors[3]
    topic.write([avro(ORDER_2, second, 9)])
    archive(topic, tmp_path / "table", format_, value=ValueSettings(Values.AVRO, {}, {"9": json.dumps(ORDER_2)}))
    last = typed(natively(tmp_path / "table"), "id", "note", "at", "lines", "_error")[-1]
    assert (last[0], last[1], last[3], last[4]) == (2, "n", "[1,2]", None)
    assert last[2].timestamp() == 1_700_000_000


def test_bytes_behind_an_avro_record_are_an_error() -> None:
    reader = AvroReader({"": json.dumps(ORDER_1)}, {})
    assert reader.fields(avro(ORDER_1, {"id": 5})) == {"id": 5}
    with pytest.raises(ValueError, match="2 bytes after"):
        reader.fields(avro(ORDER_1, {"id": 5}) + b"xx")


@pytest.mark.parametrize("schema", ["no json", '"string"', '{"type": "record"}', '{"type": "enum", "name": "E"}'])
def test_a_schema_that_is_none_is_refused_before_anything_is_done(topic: Topic, tmp_path: Path, schema: str) -> None:
    pytest.importorskip("fastavro")
    with pytest.raises(ArchiveError, match="Avro schema"):
        archive(topic, tmp_path / "table", value=ValueSettings(Values.AVRO, {}, {"": schema}))
    with pytest.raises(ArchiveError, match="--values avro requires --schema"):
        archive(topic, tmp_path / "table", value=ValueSettings(Values.AVRO))


# -------------------------------------------------------------------------------------------------- any value at all

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_VALUES = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.dictionaries(st.text(max_size=5), _JSON, max_size=5).map(lambda one: json.dumps(one).encode()),
)


def records(values: list[bytes | None]) -> pa.RecordBatch:
    columns = {
        "value": pa.array(values, pa.binary()),
        "offset": pa.array(range(len(values)), pa.int64()),
    }
    arrays = [columns.get(field.name, pa.nulls(len(values), field.type)) for field in RECORD]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD)


@given(st.lists(_VALUES, max_size=8), st.lists(_VALUES, max_size=8))
def test_any_values_give_rows_and_never_a_stop(first: list[bytes | None], later: list[bytes | None]) -> None:
    reader = JsonReader({})
    learning = Typing(reader, {}, {})
    learning.learn(records(first))
    made = Typing(reader, {}, learning.grown).rows(records(first))
    assert made.num_rows == len(first)
    # a field that is new must be seen as new, never fail in another way
    going_on = Typing(reader, learning.grown, {})
    try:
        assert going_on.rows(records(later)).num_rows == len(later)
    except Grown:
        going_on.learn(records(later))
        assert Typing(reader, learning.grown, going_on.grown).rows(records(later)).num_rows == len(later)


@given(st.lists(st.dictionaries(st.sampled_from("abAB"), st.sampled_from(["long", "double", "string"])), max_size=4))
def test_merged_columns_are_as_wide_as_every_workers(found: list[dict[str, str]]) -> None:
    kinds = merged(found)
    assert len({name.lower() for name in kinds}) == len(kinds)
    for one in found:
        for name, kind in one.items():
            (held,) = [kinds[other] for other in kinds if other.lower() == name.lower()]
            assert wider(held, kind) == held
