"""Pipelines that a team keeps in a file: sources, transforms and flows as YAML, run by Spark.

    tree, keys           the file's YAML with the line of everything in it, taken key by key
    declaration          what a file can declare, as plain values
    reading              from the tree to the declaration; every problem with its line
    graph                who reads whom: unknown names, cycles, functions that cannot be imported
    rows                 decoding, checks, and what becomes of rows that are refused
    delta, building      a flow as a Spark query
    supervision          running flows: progress, restarts with back-off, a clean stop
    checkpoints, status  where each flow is, without Spark

Everything up to `graph` works without Spark and starts none.
"""
