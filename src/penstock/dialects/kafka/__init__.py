"""Apache Kafka's protocol: the main port. Codecs for Produce and Fetch by hand, every other API through kio."""
