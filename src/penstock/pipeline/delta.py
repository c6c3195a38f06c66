"""Delta tables without jars: reading one as it stands, appending batches, and merging batches by key.

Each batch is one commit that also says which batch of which query it was (an application transaction), so a batch
that is written again after a crash is seen to be there and left alone: exactly once, whoever reads the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.pipeline.batches import query_id
from penstock.pipeline.declaration import TableSink, Upsert
from penstock.pipeline.fields import quoted
from penstock.pipeline.problems import PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DELETE: Final = "_penstock_delete"
_READABLE: Final = frozenset({"timestampNtz"})
"""Reader features of a table that change nothing about its Parquet files."""


def read_delta(session: SparkSession, path: str) -> DataFrame:
    """The table as it stands now; raises PipelineFailed when it is none, or one whose files do not speak for themselves."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError
    from pyspark.sql.types import StructType

    try:
        table = DeltaTable(path)
    except TableNotFoundError:
        raise PipelineFailed(f"no delta table at {path}") from None
    protocol = table.protocol()
    beyond = set(protocol.reader_features or ()) - _READABLE
    if beyond or (protocol.min_reader_version or 1) == 2:
        what = ", ".join(sorted(beyond)) or "column mapping"
        raise PipelineFailed(f"the delta table at {path} uses {what}, which is not supported")
    schema = StructType.fromJson(_json(table.schema().to_json()))
    files = table.file_uris()
    if not files:
        return session.createDataFrame([], schema)
    return session.read.schema(schema).option("basePath", path).parquet(*files)


def _json(text: str) -> Any:
    import json

    return json.loads(text)


class DeltaWriter:
    """What a flow to a delta table does with each batch."""

    def __init__(self, sink: TableSink, flow: str) -> None:
        self._sink = sink
        self._flow = flow

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        from deltalake import DeltaTable

        path = self._sink.path
        query = query_id(frame)
        exists = DeltaTable.is_deltatable(path)
        if exists:
            done = DeltaTable(path).transaction_version(query)
            if done is not None and done >= batch_id:
                return
        if self._sink.upsert is None:
            self._append(frame, query, batch_id)
        else:
            self._merge(frame, self._sink.upsert, query, batch_id, exists=exists)

    def _append(self, frame: DataFrame, query: str, batch_id: int) -> None:
        from deltalake import write_deltalake

        rows = frame.toArrow()
        if rows.num_rows:
            write_deltalake(
                self._sink.path,
                rows,
                mode="append",
                schema_mode="merge",
                partition_by=list(self._sink.partition_by) or None,
                commit_properties=_marked(query, batch_id),
            )

    def _merge(self, frame: DataFrame, upsert: Upsert, query: str, batch_id: int, *, exists: bool) -> None:
        from deltalake import DeltaTable

        rows = latest_rows(frame, upsert).toArrow()
        if not rows.num_rows:
            return
        _refuse_twins(rows, upsert, self._flow)
        columns = [name for name in rows.column_names if name != _DELETE]
        if not exists:
            DeltaTable.create(
                self._sink.path,
                rows.select(columns).schema,
                partition_by=list(self._sink.partition_by) or None,
            )
        table = DeltaTable(self._sink.path)
        values = {_sql(name): f"source.{_sql(name)}" for name in columns}
        newer = "true"
        if upsert.order_by is not None and upsert.order_by in {field.name for field in table.schema().fields}:
            order = _sql(upsert.order_by)
            newer = f"(target.{order} IS NULL OR source.{order} >= target.{order})"
        (
            table.merge(
                rows,
                " AND ".join(f"target.{_sql(name)} = source.{_sql(name)}" for name in upsert.key),
                source_alias="source",
                target_alias="target",
                merge_schema=True,
                commit_properties=_marked(query, batch_id),
            )
            .when_matched_delete(f"source.{_DELETE} AND {newer}")
            .when_matched_update(values, f"NOT source.{_DELETE} AND {newer}")
            .when_not_matched_insert(values, f"NOT source.{_DELETE}")
            .execute()
        )


def latest_rows(frame: DataFrame, upsert: Upsert) -> DataFrame:
    """One row a key, the newest, with a column that says whether it deletes."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    keys = [sql.col(quoted(name)) for name in upsert.key]
    delete = (
        sql.lit(False) if upsert.delete_when is None else sql.coalesce(sql.expr(upsert.delete_when), sql.lit(False))
    )
    text = sql.lit(f"the upsert key {', '.join(upsert.key)} is null in a row: reject such rows with a check")
    whole = sql.lit(True)
    for key in keys:
        whole = whole & key.isNotNull()
    rows = frame.filter(sql.when(whole, sql.lit(True)).otherwise(sql.raise_error(text).cast("boolean")))
    rows = rows.withColumn(_DELETE, delete)
    if upsert.order_by is None:
        return rows
    newest = Window.partitionBy(*keys).orderBy(sql.col(quoted(upsert.order_by)).desc_nulls_last())
    rank = "_penstock_rank"
    return rows.withColumn(rank, sql.row_number().over(newest)).filter(sql.col(rank) == 1).drop(rank)


def _refuse_twins(rows: Any, upsert: Upsert, flow: str) -> None:
    """A merge would insert both."""
    if upsert.order_by is None and rows.select(list(upsert.key)).group_by(list(upsert.key)).aggregate(
        []
    ).num_rows < len(rows):
        raise PipelineFailed(f"flows.{flow}: a batch has two rows with the same key; set upsert.order_by to select one")


def _sql(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _marked(query: str, batch_id: int) -> Any:
    """What makes a commit known as this batch; of two writers of one batch the second is refused."""
    from deltalake import CommitProperties, Transaction

    return CommitProperties(app_transactions=[Transaction(query, batch_id)])
