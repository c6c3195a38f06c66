"""Wires the rooms to a running broker: config in, listeners out. Also the embedded broker for tests and notebooks."""
