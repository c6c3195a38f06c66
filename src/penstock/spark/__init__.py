"""Topics in Spark and as Arrow: what the extra `spark` brings.

Knows records, the Kafka client and segment files; knows no broker.
"""
