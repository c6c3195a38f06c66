"""Every limit that a peer can run into, with its reason. Docs: docs/limits.md; config keys override the defaults."""

from __future__ import annotations

FRAME_BYTES_MAX = 100 * 1024 * 1024
"""Kafka's socket.request.max.bytes: one request; checked before anything is allocated."""

REQUEST_ELEMENTS_MAX = 50_000
"""Elements of all arrays of one Kafka request: enough for 10,000 partitions with every field of each. An element takes
about 500 bytes of objects, including its part of the answer. Checked before anything is allocated. Also the maximum number
of items in an array of a FlyMQ request."""

FLYMQ_PATH_NAMES_MAX = 32
"""Names in the path of a filter: each needs a type, created in 0.05 ms, and every object on the path is searched."""

FLYMQ_MEMBER_TOPICS_MAX = 10_000
"""Topics of one member of a FlyMQ group: each rebalance visits all topics of all members."""

REQUEST_BYTES_MAX = 8 * 1024 * 1024
"""A Kafka request other than Produce: the size of 10,000 partitions with the longest names."""

STRING_BYTES_MAX = 32_767
"""A string in a Kafka request, as in Kafka: the older encoding has a two-byte length."""

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""A Kafka answer other than Fetch: the size of the configs of 10,000 topics with all synonyms."""

CONNECTIONS_MAX = 10_000
"""Connections of all listeners; fewer if the limit of open files is too low for them and the logs."""

CONNECTIONS_PER_IP_MAX = 5_000
"""One misbehaving host must not take every place."""

IN_FLIGHT_REQUESTS_MAX = 1_000
"""Unanswered requests of one connection; then its socket is not read until answers leave."""

IN_FLIGHT_BYTES_MAX = 512 * 1024 * 1024
"""Bytes of half-received frames and unsent answers over all connections; beyond it sockets are not read."""

WRITE_BUFFER_BYTES_HIGH = 1024 * 1024
"""Unsent answers of one connection; then its requests are not read until the peer takes its answers."""

FRAME_DEADLINE_MS = 30_000
"""A frame that has begun must be complete by then (a peer that drips bytes holds a buffer)."""

IDLE_DEADLINE_MS = 600_000
"""Kafka's connections.max.idle.ms: clients keep quiet bootstrap connections for minutes."""

WRITE_DEADLINE_MS = 60_000
"""A peer that takes nothing of a waiting answer for so long is gone."""

SCRATCH_BYTES = 256 * 1024
"""The receive buffer that all connections of a loop share; only a partial frame is copied out of it."""

OPEN_FILES_MAX = 1_024
"""Log and index files kept open; least recently used ones are closed beyond it, so thousands of partitions are fine."""

INDEX_INTERVAL_BYTES_MAX = 32 * 1024
"""Kafka's index.interval.bytes, as far as it acts: a read walks over the headers between two index entries on the event
loop, and this much of the smallest batches takes about a millisecond."""

RESERVE_BYTES = 8 * 1024 * 1024
"""Disk space kept for the broker's own writes: about 35,000 commits on a full disk. One eighth is kept for small files
only. It must hold the catalogue and the checkpoint, and is enough for about 5,000 partitions."""

DESCRIPTORS_RESERVED = 128
"""File descriptors for everything but log files and connections: small files, flushes, the cleaner, listeners."""

DESCRIPTORS_MIN = 64
"""Descriptors for log files and connections below which the broker does not start."""

PRODUCER_BATCHES_REMEMBERED = 5
"""Kafka's window of an idempotent producer: max.in.flight.requests.per.connection is at most 5."""

PRODUCERS_PER_PARTITION_MAX = 100_000
"""Idle producers expire by time; this bounds a client that asks for a new id each time (oldest go first)."""

PARTITIONS_PER_TOPIC_MAX = 10_000
PARTITIONS_MAX = 100_000
"""Directories and catalogue entries; each costs about 1 KB of memory."""

AUTO_CREATED_TOPICS_MAX = 1_000
"""Topics that one Metadata request creates. A client that needs more asks again for the missing ones."""

GROUP_PROTOCOLS_MAX = 100
"""Assignors that a member of a classic group offers: clients have one to three, and those of all members are compared."""

GROUP_MEMBERS_MAX = 1_000
"""Members of a group: each join or leave causes work for all other members."""

GROUP_METADATA_BYTES_MAX = 4 * 1024 * 1024
"""Metadata of all members of a classic group: stored in one record each time the group becomes stable."""

CONSUMER_GROUP_TOPICS_MAX = 2_000
CONSUMER_GROUP_PARTITIONS_MAX = 20_000
"""Size of the topics of a consumer group: the broker assigns all partitions in one step when a member joins or leaves."""

CONSUMER_GROUP_NAMES_MAX = 20_000
"""Names in the distinct subscriptions of a consumer group, including topics that do not exist."""

CONSUMER_GROUP_PATTERNS_MAX = 10
"""Distinct patterns that the members of a consumer group subscribe to."""

ANSWER_ELEMENTS_MAX = 500_000
"""Elements of an answer that describes groups, offsets, transactions or producers: a request may repeat a large one."""

TRANSACTION_PARTITIONS_MAX = 10_000
"""Partitions of one transaction: each record about it lists them all, and one command checks them all."""

TRANSACTION_OFFSETS_MAX = 20_000
"""Offsets that one transaction commits: all of them are applied when its marker is written."""

DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024
"""Size that one batch may unpack to, for all readers."""

UNPACKED_BYTES_FREE = 16 * 1024 * 1024
UNPACKED_RATIO_MAX = 100
"""Size that the broker unpacks a batch to: this many bytes, or this multiple of the batch's size if that is more. Text
compresses to a twentieth; a peer must send many bytes to make the broker unpack many."""

UNPACKED_BYTES_MAX = 256 * 1024 * 1024
"""Batches being unpacked over all connections, each counted with its maximum unpacked size; other batches wait."""

PREPARED_BYTES_MAX = 128 * 1024 * 1024
"""Copies of batches waiting to be checked, and of records queued after them, over all connections."""

PREPARED_RECORDS_MAX = 1_000_000
"""Records of a batch that the broker has to check: about a second of the event loop, in slices."""

PREPARED_WAIT_MS_MAX = 20_000
"""Time after which a batch that waits to be checked is refused: Kafka's producers give up after 30 s."""

PREPARED_WALK_MS_MAX = 10_000
"""Processor time for checking one batch: ten times that of a batch with the most records and headers."""

CHECKED_BATCHES_MAX = 65_536
"""Batches of large values that are remembered as checked, over all open files: about 100 bytes each."""
READ_ERRORS_REMEMBERED_MAX = 1_024
"""Offsets remembered as failed and logged, over all partitions; forgotten ones are logged again."""

RUSTLOG_LAGS_MAX = 1_000
"""Rows of consumer_lag in the metrics of a RustLog listener: clients choose the group names."""

HEADERS_PER_RECORD_MAX = 10_000
HEADERS_PER_BATCH_MAX = 1_000_000
"""Kafka has no bound; a decoded header costs about 200 bytes."""

IMPORT_ENTRIES_MAX = 1_000_000
"""Files and folders of a directory to import: their names are kept in memory, and the directory is not trusted."""

IMPORT_BATCH_BYTES_MAX = 256 * 1024 * 1024
"""One batch of a Kafka directory to import: it is read into memory as a whole, and its length field is not trusted."""

IMPORT_SMALL_FILE_BYTES_MAX = 16 * 1024 * 1024
"""An index or a file of committed offsets of a directory to import: larger ones are not read."""

CLEANER_MEMORY_BYTES_MAX = 2 * 1024 * 1024 * 1024
"""Memory of the process that cleans logs: three times the size of a full map of keys and the largest batch."""

READ_OBJECTS_MAX = 20_000
"""Records and headers in one answer of a dialect that reads records, not counting the last record: about 6 MB, which take
20 ms of the event loop to encode."""
