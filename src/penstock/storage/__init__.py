"""Partition logs on disk: segments, indexes, recovery, flush, retention. The only room that touches log files.

A data directory holds a folder a partition, `<topic>-<partition>/`, in Kafka's layout, and a few small files of its own,
each written aside and renamed, with a checksum. Everything runs on one thread, the event loop's; other threads are given
file descriptors to fdatasync or to read, never a log's state.
"""
