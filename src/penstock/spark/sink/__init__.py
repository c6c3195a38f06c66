"""Topics as Spark sinks: at least once and exactly once."""
