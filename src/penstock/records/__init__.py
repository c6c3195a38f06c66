"""The record-batch format (magic 2): header, varints, CRC-32C, compression. Pure: no clock, no files, no sockets.

A batch on the wire and on disk is the same bytes. The broker reads and rewrites its 61-byte header and never its records;
only clients of single records, log cleaning and table export look inside.
"""
