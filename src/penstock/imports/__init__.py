"""Foreign data directories into Penstock: what lies there is read, what is whole comes over, what is not is in the report.

    one broker's directory -> a reader (fluxgo, minikafka, rustlog, flymq, day1, kafka)
                           -> record batches at the offsets that the records had
                           -> a stopped broker's data directory (offsets kept), or a running broker (new offsets)
                           -> read back, counted and compared

Each reader is a module that fulfils `source.Reader`. It walks and opens the directory by `entries`, which leads nowhere
else, trusts no index and no length, and never stops at damage: it says where the damage is and goes on after it where its
format lets it. `survey` looks at a directory without writing; `offline` and `online` are the two ways to write; `run` puts
the steps in order. Nothing here needs Spark: whoever wants the partitions read in parallel gives `run` another engine.
"""
