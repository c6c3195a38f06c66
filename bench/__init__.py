"""Benchmarks: the broker in its own process, against what this machine can do at all.

`python -m bench [NAMES...] [--quick]` runs the scenarios and writes `bench/results/`; `python -m bench.report` writes
docs/benchmarks.md from those files. Nothing here is imported by the product.
"""
