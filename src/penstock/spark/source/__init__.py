"""Topics as Spark sources: batch and streaming reads."""
