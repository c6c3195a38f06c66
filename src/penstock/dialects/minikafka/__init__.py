"""MiniKafka: a line protocol in which a consumer polls for one message at a time and acknowledges it."""
