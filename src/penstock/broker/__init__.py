"""The dialect-neutral broker: find the partition, append, wait, fetch. Knows no protocol and no socket."""
