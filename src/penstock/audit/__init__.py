"""Auditing logs and tables: is every record there, once, in order and undamaged, and is a table what its topic is.

    segments of a data directory, files of a table, or a running broker
        -> tasks, one a partition or file, wherever Spark puts them: everything is read, little is kept (`facts`)
        -> merged by partition: gaps, duplicates and order over all files (`merging`)
        -> table against topic, by offsets and by content (`comparing`); where they may differ, row by row (`rereading`)
        -> a report: findings by kind, numbers, plots (`report`, `page`)

Facts are small and can be added up, so a task gives back kilobytes whatever it read.
"""
