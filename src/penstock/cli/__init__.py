"""The command line: one module a command. Commands talk to a broker as any Kafka client does; only `serve` runs one."""
