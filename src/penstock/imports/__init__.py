"""Foreign data directories into Penstock: what lies there is read, what is whole comes over, what is not is in the report.

    one broker's directory -> a reader (fluxgo, minikafka, rustlog, flymq, day1, kafka)
                           -> record batches at the offsets that the records had
                           -> a stopped broker's data directory (offsets kept), or a running broker (new offsets)
                           -> read back, counted and compared

Each reader is a module that implements `source.Reader`. It walks and opens the directory with `entries`, which never leaves
it, trusts no index and no length, and does not stop at damage: it reports the damage and continues after it where its format
allows. `survey` inspects a directory without writing; `staging` with `installing`, and `online`, are the two ways to write;
`run` puts the steps in order. Nothing here needs Spark: to read the partitions in parallel, pass another engine to `run`.
"""
