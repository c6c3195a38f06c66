"""Schemas are checked before there is a Spark to ask, and mean what Spark means by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.fields import SIMPLE, Field, InvalidSchema, ddl, parse_fields, parse_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPES = st.recursive(
    st.sampled_from(sorted(SIMPLE)) | st.just("decimal(10, 2)") | st.just("varchar(20)"),
    lambda inner: (
        inner.map(lambda one: f"array<{one}>")
        | st.tuples(inner, inner).map(lambda two: f"map<{two[0]}, {two[1]}>")
        | st.lists(inner, min_size=1, max_size=3).map(
            lambda many: f"struct<{', '.join(f'`f{at}`: {one}' for at, one in enumerate(many))}>"
        )
    ),
    max_leaves=6,
)


def test_a_schema_has_names_types_and_what_is_demanded() -> None:
    text = "id BIGINT NOT NULL, `odd name` array< struct<a: int, b STRING> >,\n price Decimal(12,2)"
    assert parse_fields(text) == (
        Field("id", "bigint", required=True),
        Field("odd name", "array<struct<`a`: int, `b`: string>>"),
        Field("price", "decimal(12, 2)"),
    )


@given(TYPES)
def test_every_type_reads_as_it_is_written(written: str) -> None:
    assert parse_type(written) == (written, False)
    assert parse_type(written.upper().replace("`F", "`f") + " not null") == (written, True)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("id BIGNT", 0, "unknown type BIGNT; did you mean bigint"),
        ("id", 0, "ends where a type is expected"),
        ("id INT,\n", 0, "ends where a column name is expected"),
        ("id INT,\nname STRING STRING", 1, "is unexpected"),
        ("id INT,\n\nID STRING", 0, "duplicate column"),
        ("a ARRAY<INT", 0, "'>' is missing"),
        ("a MAP<STRING>", 0, "',' is missing"),
        ("a VARCHAR", 0, "requires a length"),
        ("a DECIMAL(1,2,3)", 0, "at most 2"),
        ("a DECIMAL(x)", 0, "requires numbers"),
        ("a INT NOT", 0, "'null' is missing"),
        ("a INT;\n", 0, "is not valid in a schema"),
        ("a " + "array<" * 40 + "int" + ">" * 40, 0, "nested more than"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_line(text: str, line: int, says: str) -> None:
    with pytest.raises(InvalidSchema, match=says) as refused:
        parse_fields(text)
    assert refused.value.line == line


@given(st.text(alphabet="abint <>,:()0`\n", max_size=40))
def test_any_text_is_a_schema_or_refused(text: str) -> None:
    try:
        assert parse_fields(text)
    except InvalidSchema as refused:
        assert 0 <= refused.line <= text.count("\n")


def test_spark_takes_every_type_that_is_taken_here(spark: SparkSession) -> None:
    from pyspark.sql.types import StructType

    types = [*sorted(SIMPLE), "decimal", "dec(5)", "numeric(5, 1)", "char(3)", "varchar(9)", "map<string, array<int>>"]
    fields = parse_fields(
        ", ".join(f"`c {at}` {one}" for at, one in enumerate(types)) + ", s STRUCT<a: INT, `b c` DATE>"
    )
    assert len(StructType.fromDDL(ddl(fields))) == len(types) + 1
