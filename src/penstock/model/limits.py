"""Every limit that a peer can run into, with its reason. Docs: docs/limits.md; config keys override the defaults."""

from __future__ import annotations

FRAME_BYTES_MAX = 100 * 1024 * 1024
"""Kafka's socket.request.max.bytes: one request; checked before anything is allocated."""

REQUEST_ELEMENTS_MAX = 50_000
"""Array elements of one Kafka request, all arrays together: 10,000 partitions with all that a request can say of each. An
element becomes some 500 bytes of objects, with its part of the answer. Checked before anything is allocated. Also the items
of an array of a FlyMQ request."""

FLYMQ_PATH_NAMES_MAX = 32
"""Names of a filter's path: a type is made for each, in some 0.05 ms, and every object on the path is looked through."""

FLYMQ_MEMBER_TOPICS_MAX = 10_000
"""Topics of a FlyMQ group's member: each rebalance looks at all topics of all members."""

REQUEST_BYTES_MAX = 8 * 1024 * 1024
"""A Kafka request other than Produce: what 10,000 partitions with the longest names take."""

STRING_BYTES_MAX = 32_767
"""A string of a Kafka request, as in Kafka: its older form has two bytes for the length."""

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""An answer of the Kafka dialect other than Fetch: the configs of 10,000 topics with all synonyms."""

CONNECTIONS_MAX = 10_000
"""All listeners together; fewer where the limit of open files is too low for them and the logs."""

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

RESERVE_BYTES = 8 * 1024 * 1024
"""Disk space kept for the broker's own writes: on a full disk it lasts for about 35,000 commits. One eighth of it is for
small files alone, which must hold the catalogue and the checkpoint: enough for about 5,000 partitions."""

DESCRIPTORS_RESERVED = 128
"""File descriptors for everything but log files and connections: small files, flushes, the cleaner, listeners."""

DESCRIPTORS_MIN = 64
"""Log files and connections together need this many to be of use."""

PRODUCER_BATCHES_REMEMBERED = 5
"""Kafka's window of an idempotent producer: max.in.flight.requests.per.connection is at most 5."""

PRODUCERS_PER_PARTITION_MAX = 100_000
"""Idle producers expire by time; this bounds a client that asks for a new id each time (oldest go first)."""

PARTITIONS_PER_TOPIC_MAX = 10_000
PARTITIONS_MAX = 100_000
"""Directories and catalogue entries; each costs about 1 KB of memory."""

AUTO_CREATED_TOPICS_MAX = 1_000
"""Topics that one Metadata request makes. A client that asks for more asks again for those that are still missing."""

GROUP_PROTOCOLS_MAX = 100
"""Assignors that a member of a classic group offers: clients have one to three, and every member's are compared."""

GROUP_MEMBERS_MAX = 1_000
"""Members of a group: each that joins or leaves makes work for all the others."""

GROUP_METADATA_BYTES_MAX = 4 * 1024 * 1024
"""Metadata of all members of a classic group: it is stored in one record, whenever the group becomes stable."""

CONSUMER_GROUP_TOPICS_MAX = 2_000
CONSUMER_GROUP_PARTITIONS_MAX = 20_000
"""What the topics of a consumer group may be: the broker assigns all of them in one step when a member joins or leaves."""

CONSUMER_GROUP_NAMES_MAX = 20_000
"""Names in the different subscriptions of a consumer group, whether these topics exist or not."""

CONSUMER_GROUP_PATTERNS_MAX = 10
"""Different patterns that the members of a consumer group subscribe to."""

ANSWER_ELEMENTS_MAX = 500_000
"""Elements of an answer that describes groups, offsets, transactions or producers: a request may name a large one often."""

TRANSACTION_PARTITIONS_MAX = 10_000
"""Partitions of one transaction: all of them are written in each record about it, and checked in one command."""

TRANSACTION_OFFSETS_MAX = 20_000
"""Offsets that one transaction commits: all of them are taken over when its marker is written."""

DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024
"""What one batch may unpack to, whoever looks inside."""

UNPACKED_BYTES_FREE = 16 * 1024 * 1024
UNPACKED_RATIO_MAX = 100
"""What the broker unpacks of a batch: so many bytes, or so many times its size where that is more. Text shrinks to a
twentieth; a peer that wants the broker to unpack much has to send much."""

UNPACKED_BYTES_MAX = 256 * 1024 * 1024
"""Batches being unpacked over all connections, each counted by the most that it can unpack to; the others wait."""

PREPARED_BYTES_MAX = 128 * 1024 * 1024
"""Copies of batches that wait for a look inside, and of records behind them, over all connections."""

PREPARED_RECORDS_MAX = 1_000_000
"""Records of a batch that the broker has to look into: about a second of the event loop, in slices."""

PREPARED_WAIT_MS_MAX = 20_000
"""A batch that waits so long for its look inside is refused: Kafka's producers give up after 30 s."""

PREPARED_WALK_MS_MAX = 10_000
"""Processor time for the look into one batch: ten times what the most records and headers take."""

CHECKED_BATCHES_MAX = 65_536
"""Batches of large values that are remembered as checked, over all open files: about 100 bytes each."""
READ_ERRORS_REMEMBERED_MAX = 1_024
"""Offsets whose read failed and was logged, over all partitions; when there are more, they are logged again."""

RUSTLOG_LAGS_MAX = 1_000
"""Rows of consumer_lag in a RustLog listener's metrics: clients choose the names of their groups."""

HEADERS_PER_RECORD_MAX = 10_000
HEADERS_PER_BATCH_MAX = 1_000_000
"""Kafka has no bound; a decoded header costs about 200 bytes."""

IMPORT_ENTRIES_MAX = 1_000_000
"""Files and folders of a directory to be imported: their names are in memory, and nobody vouches for the directory."""

IMPORT_BATCH_BYTES_MAX = 256 * 1024 * 1024
"""One batch of a Kafka directory: it is read into memory as a whole, and its length may be made up."""

IMPORT_SMALL_FILE_BYTES_MAX = 16 * 1024 * 1024
"""An index, or a file of committed offsets, of a directory to be imported: larger ones are not read."""

CLEANER_MEMORY_BYTES_MAX = 2 * 1024 * 1024 * 1024
"""Of the process that cleans logs: three times what a full map of keys and the largest batch need."""

READ_OBJECTS_MAX = 20_000
"""Records and headers in one answer of a dialect that reads records, besides the last record: about 6 MB, and 20 ms of the
event loop to encode."""
