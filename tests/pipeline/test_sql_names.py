"""The views of a query are told from its text; what is no view is not taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.sql_names import InvalidSql, view_names


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT * FROM orders", ["orders"]),
        ("select * from orders o join customers c on o.id = c.id", ["orders", "customers"]),
        ("SELECT * FROM a, b AS bee, c WHERE a.x IN (1, 2)", ["a", "b", "c"]),
        ("SELECT * FROM a LEFT JOIN b USING (id) CROSS JOIN c", ["a", "b", "c"]),
        ("WITH x AS (SELECT * FROM a), y (n) AS (SELECT 1 FROM x) SELECT * FROM y JOIN x JOIN b", ["a", "b"]),
        ("SELECT * FROM (SELECT * FROM a) t JOIN (b JOIN c ON true) ON true", ["a", "b", "c"]),
        ("SELECT extract(YEAR FROM day), trim(BOTH 'x' FROM name) FROM a", ["a"]),
        ("SELECT a IS DISTINCT FROM b, a IS NOT DISTINCT FROM c FROM t", ["t"]),
        ("SELECT DISTINCT x FROM a UNION ALL SELECT y FROM b", ["a", "b"]),
        ("SELECT * FROM range(10), explode(array(1)) JOIN a", ["a"]),
        ("SELECT * FROM catalog.schema.t JOIN parquet.`/some/where` JOIN a", ["a"]),
        ("SELECT * FROM a LATERAL VIEW explode(xs) t AS x, y WHERE x > 1", ["a"]),
        ("SELECT 'from nowhere', \"from there\" FROM a -- from comment\n/* from\nother */ JOIN b", ["a", "b"]),
        ("SELECT * FROM `a b` JOIN A", ["a b", "A"]),
        ("SELECT * FROM a WHERE x IN (SELECT id FROM b) GROUP BY c, d", ["a", "b"]),
        ("SELECT count(*) FROM a GROUP BY window(at, '1 minute'), kind HAVING count(*) > 1 ORDER BY x, y", ["a"]),
        ("SELECT * FROM a;", ["a"]),
        ("TABLE a", ["a"]),
        ("VALUES (1), (2)", []),
        ("FROM a SELECT x, y", ["a"]),
        ("SELECT * FROM a AS t (x, y), b", ["a", "b"]),
        ("SELECT *, (SELECT max(x) FROM b) FROM a", ["b", "a"]),
        ("SELECT * FROM a TABLESAMPLE (10 PERCENT), b", ["a", "b"]),
    ],
)
def test_views_of_a_query(sql: str, names: list[str]) -> None:
    assert [view.name for view in view_names(sql)] == names


def test_a_view_has_the_line_where_it_is_named_first() -> None:
    found = view_names("SELECT *\nFROM a\n  JOIN 'x\ny' = 1\n JOIN b\nJOIN a")
    assert [(view.name, view.line) for view in found if view.name in "ab"] == [("a", 1), ("b", 4)]


@pytest.mark.parametrize(
    ("sql", "line", "text"),
    [
        ("  \n -- nothing", 0, "empty"),
        ("DROP TABLE a", 0, "DROP"),
        ("SELECT (1\nFROM a", 0, "unclosed "),
        ("SELECT 1)\nFROM a", 0, r"unexpected \)"),
        ("SELECT\n 'a FROM b", 1, "unclosed "),
        ("SELECT 1;\nSELECT 2", 1, "second statement"),
    ],
)
def test_what_cannot_be_a_query_is_refused_with_its_line(sql: str, line: int, text: str) -> None:
    with pytest.raises(InvalidSql, match=text) as refused:
        view_names(sql)
    assert refused.value.line == line


@given(st.text(alphabet="abc FROMJINSELT(),;'`\"\\\n-*/.", max_size=60))
def test_any_text_gives_views_or_is_refused(sql: str) -> None:
    try:
        assert all(view.line <= sql.count("\n") for view in view_names(sql))
    except InvalidSql as refused:
        assert 0 <= refused.line <= sql.count("\n")
