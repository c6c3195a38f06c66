"""Topics as lake tables, and back: what `penstock archive` does.

The driver plans ranges of offsets below the last stable offset; tasks, in Spark's Python workers or in threads, fetch the
batches over the wire, write Parquet files with pyarrow and give back what they wrote; the driver commits. A commit holds
the files and the next offset of each partition together, in whichever format the table has, so that every offset is in
the table once, whenever the archiver is killed.

    from penstock.lake import dataset, open_table
    dataset(open_table("lake/orders")).to_table()      # pyarrow, any format
"""

from __future__ import annotations

from penstock.lake.archiver import Archiver
from penstock.lake.errors import ArchiveError, Conflict
from penstock.lake.opening import open_table
from penstock.lake.tables import dataset

__all__ = ["ArchiveError", "Archiver", "Conflict", "dataset", "open_table"]
