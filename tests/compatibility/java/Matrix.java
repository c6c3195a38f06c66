import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ConsumerGroupListing;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.config.TopicConfig;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What the matrix checks of Kafka's Java client: every feature in one start of the JVM, a line each.
 * {@code java -cp 'jars/*' Matrix.java BOOTSTRAP PREFIX} writes "ok FEATURE" or "failed FEATURE WHY".
 */
public final class Matrix {
    private static final int PARTITIONS = 4;
    private static final Duration POLL = Duration.ofMillis(50);
    private static String bootstrap;
    private static Admin admin;

    private interface Check {
        void run(String topic) throws Exception;
    }

    public static void main(String[] arguments) {
        bootstrap = arguments[0];
        Map<String, Check> checks = new LinkedHashMap<>();
        checks.put("produce", Matrix::produce);
        checks.put("idempotent", Matrix::idempotent);
        checks.put("transactional", Matrix::transactional);
        checks.put("classic", topic -> group(topic, Map.of("group.protocol", "classic"), GroupType.CLASSIC, "range"));
        checks.put("cooperative", Matrix::cooperative);
        checks.put("consumer", topic -> group(topic, Map.of("group.protocol", "consumer"), GroupType.CONSUMER, "uniform"));
        checks.put("static", Matrix::staticMembership);
        checks.put("admin", Matrix::adminCalls);
        try (Admin made = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin = made;
            checks.forEach((feature, check) -> {
                String topic = arguments[1] + "-" + feature;
                try {
                    admin.createTopics(List.of(new NewTopic(topic, PARTITIONS, (short) 1))).all().get();
                    check.run(topic);
                    System.out.println("ok " + feature);
                } catch (Exception | AssertionError failure) {
                    failure.printStackTrace();
                    System.out.println("failed " + feature + " " + failure);
                }
            });
        }
    }

    // ---- producers

    private static KafkaProducer<String, String> producer(Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(more);
        settings.put("bootstrap.servers", bootstrap);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private static List<String> write(KafkaProducer<String, String> producer, String topic, String word, int count)
            throws Exception {
        List<String> values = new ArrayList<>();
        List<Future<?>> sends = new ArrayList<>();
        for (int at = 0; at < count; at++) {
            String value = word + " " + at;
            ProducerRecord<String, String> record = new ProducerRecord<>(topic, at % PARTITIONS, "key " + at, value);
            record.headers().add("number", Integer.toString(at).getBytes());
            sends.add(producer.send(record));
            values.add(value);
        }
        producer.flush();
        for (Future<?> send : sends) {
            send.get();
        }
        return values;
    }

    private static List<String> read(String topic, int count, String isolation) {
        List<String> values = new ArrayList<>();
        Map<String, Object> settings = Map.of("isolation.level", isolation);
        try (KafkaConsumer<String, String> consumer = consumer(settings)) {
            List<TopicPartition> partitions = partitions(topic);
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            until("the end of " + topic, () -> {
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    String number = new String(record.headers().lastHeader("number").value());
                    check(record.value().endsWith(" " + number), "the header belongs to the value");
                    check(record.key().equals("key " + number), "the key belongs to the value");
                    values.add(record.value());
                }
                return partitions.stream().allMatch(at -> consumer.position(at) >= ends.get(at));
            });
        }
        check(values.size() == count, "there are " + values.size() + " records, not " + count);
        return values;
    }

    private static void produce(String topic) throws Exception {
        List<String> sent = new ArrayList<>();
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            Map<String, Object> settings = Map.of("enable.idempotence", false, "acks", "all", "compression.type", codec);
            try (KafkaProducer<String, String> producer = producer(settings)) {
                sent.addAll(write(producer, topic, codec, 20));
            }
        }
        check(sorted(sent).equals(sorted(read(topic, 100, "read_uncommitted"))), "what was sent is read");
    }

    private static void idempotent(String topic) throws Exception {
        List<String> sent;
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            sent = write(producer, topic, "once", 100);
        }
        check(sorted(sent).equals(sorted(read(topic, 100, "read_uncommitted"))), "what was sent is read once");
        TopicPartition first = new TopicPartition(topic, 0);
        List<ProducerState> known =
                admin.describeProducers(List.of(first)).partitionResult(first).get().activeProducers();
        check(known.size() == 1 && known.get(0).producerId() >= 0, "the broker knows the producer: " + known);
    }

    private static void transactional(String topic) throws Exception {
        String name = topic + "-id";
        List<String> committed;
        try (KafkaProducer<String, String> producer = producer(Map.of("transactional.id", name));
                KafkaConsumer<String, String> consumer = consumer(Map.of("group.id", topic + "-group"))) {
            producer.initTransactions();
            producer.beginTransaction();
            committed = write(producer, topic, "committed", 12);
            producer.sendOffsetsToTransaction(
                    Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(3)), consumer.groupMetadata());
            producer.commitTransaction();
            producer.beginTransaction();
            write(producer, topic, "aborted", 8);
            producer.sendOffsetsToTransaction(
                    Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(4)), consumer.groupMetadata());
            producer.abortTransaction();
            producer.beginTransaction();
            committed.addAll(write(producer, topic, "later", 10));
            producer.commitTransaction();
        }
        until("the last transaction is complete", () ->
                get(admin.describeTransactions(List.of(name)).description(name)).state()
                        == TransactionState.COMPLETE_COMMIT);
        check(sorted(committed).equals(sorted(read(topic, 22, "read_committed"))), "only what was committed is read");
        read(topic, 30, "read_uncommitted");
        long offset = admin.listConsumerGroupOffsets(topic + "-group")
                .partitionsToOffsetAndMetadata()
                .get()
                .get(new TopicPartition(topic, 0))
                .offset();
        check(offset == 3, "the committed transaction's offset counts: " + offset);
    }

    // ---- groups

    private static KafkaConsumer<String, String> consumer(Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(more);
        settings.put("bootstrap.servers", bootstrap);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", settings.containsKey("group.id"));
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private static final class Member implements AutoCloseable, ConsumerRebalanceListener {
        final KafkaConsumer<String, String> consumer;
        final List<String> values = new ArrayList<>();
        final List<Set<TopicPartition>> revoked = new ArrayList<>();
        int assignments = 0;

        Member(String topic, Map<String, Object> more) {
            Map<String, Object> settings = new HashMap<>(more);
            settings.put("group.id", topic + "-group");
            if (!"consumer".equals(settings.get("group.protocol"))) {
                settings.put("heartbeat.interval.ms", 300);
            }
            consumer = Matrix.consumer(settings);
            consumer.subscribe(List.of(topic), this);
        }

        Member poll() {
            consumer.poll(POLL).forEach(record -> values.add(record.value()));
            return this;
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            assignments++;
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            revoked.add(Set.copyOf(partitions));
        }

        @Override
        public void close() {
            consumer.close();
        }
    }

    private static boolean share(Member... members) {
        Set<TopicPartition> all = Collections.newSetFromMap(new HashMap<>());
        int count = 0;
        for (Member member : members) {
            Set<TopicPartition> own = member.poll().consumer.assignment();
            if (own.isEmpty()) {
                return false;
            }
            all.addAll(own);
            count += own.size();
        }
        return all.size() == PARTITIONS && count == PARTITIONS;
    }

    private static void readAll(String topic, List<Member> members) throws Exception {
        List<String> sent;
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            sent = write(producer, topic, "shared", 40);
        }
        List<String> seen = new ArrayList<>();
        until("everything is read", () -> {
            seen.clear();
            members.forEach(member -> seen.addAll(member.poll().values));
            return seen.size() >= sent.size();
        });
        check(sorted(seen).equals(sorted(sent)), "each record is read once");
    }

    private static void group(String topic, Map<String, Object> settings, GroupType type, String assignor)
            throws Exception {
        String group = topic + "-group";
        Map<String, Object> all = new HashMap<>(settings);
        if (type == GroupType.CLASSIC) {
            all.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
        }
        try (Member first = new Member(topic, all)) {
            until("the first member has all", () -> share(first));
            try (Member second = new Member(topic, all)) {
                until("two members share", () -> share(first, second));
                readAll(topic, List.of(first, second));
                ConsumerGroupDescription shown = describe(group);
                check(shown.members().size() == 2, "two members are shown: " + shown);
                check(shown.partitionAssignor().equals(assignor), "the assignor is " + shown.partitionAssignor());
                Optional<GroupType> listed = listed(group).type();
                check(listed.equals(Optional.of(type)), "the group is listed as " + listed);
            }
            until("the first member has all again", () -> share(first));
        }
        Map<TopicPartition, OffsetAndMetadata> offsets =
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        check(offsets.size() == PARTITIONS && offsets.values().stream().allMatch(at -> at.offset() == 10), "all is committed");
    }

    private static void cooperative(String topic) throws Exception {
        Map<String, Object> settings = Map.of(
                "partition.assignment.strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
        try (Member first = new Member(topic, settings)) {
            until("the first member has all", () -> share(first));
            try (Member second = new Member(topic, settings)) {
                until("two members share", () -> share(first, second));
                Set<TopicPartition> lost = first.revoked.stream().flatMap(Set::stream).collect(Collectors.toSet());
                check(lost.size() == PARTITIONS / 2, "the first lost only what it gave away: " + first.revoked);
                check(describe(topic + "-group").partitionAssignor().equals("cooperative-sticky"), "the assignor");
                readAll(topic, List.of(first, second));
            }
        }
    }

    private static void staticMembership(String topic) throws Exception {
        try (Member first = new Member(topic, Map.of("group.instance.id", "one"))) {
            until("the first member has all", () -> share(first));
            Map<String, Set<TopicPartition>> owned = new TreeMap<>();
            try (Member second = new Member(topic, Map.of("group.instance.id", "two"))) {
                until("two members share", () -> share(first, second));
                owned.putAll(owners(topic + "-group"));
            }
            int before = first.assignments;
            check(owners(topic + "-group").equals(owned), "its place is kept while it is away");
            try (Member again = new Member(topic, Map.of("group.instance.id", "two"))) {
                until("it is back", () -> share(first, again));
                check(owners(topic + "-group").equals(owned), "it finds its partitions");
                readAll(topic, List.of(first, again));
                check(first.assignments == before, "the other was not disturbed");
            }
        }
    }

    private static Map<String, Set<TopicPartition>> owners(String group) {
        Map<String, Set<TopicPartition>> owners = new TreeMap<>();
        for (MemberDescription member : describe(group).members()) {
            owners.put(member.groupInstanceId().orElseThrow(), member.assignment().topicPartitions());
        }
        return owners;
    }

    private static ConsumerGroupDescription describe(String group) {
        return get(admin.describeConsumerGroups(List.of(group)).describedGroups().get(group));
    }

    private static ConsumerGroupListing listed(String group) {
        return get(admin.listConsumerGroups().all()).stream()
                .filter(row -> row.groupId().equals(group))
                .findAny()
                .orElseThrow();
    }

    // ---- administration

    private static void adminCalls(String topic) throws Exception {
        String made = topic + "-made";
        String group = topic + "-group";
        TopicPartition first = new TopicPartition(made, 0);
        check(admin.describeCluster().nodes().get().size() == 1, "there is one broker");
        check(admin.describeFeatures().featureMetadata().get().finalizedFeatures().containsKey("group.version"), "features");
        Map<String, String> configs = Map.of("retention.ms", "123456");
        check(admin.createTopics(List.of(new NewTopic(made, 2, (short) 1).configs(configs))).numPartitions(made).get() == 2,
                "the new topic is told");
        admin.createPartitions(Map.of(made, NewPartitions.increaseTo(PARTITIONS))).all().get();
        check(admin.describeTopics(List.of(made)).allTopicNames().get().get(made).partitions().size() == PARTITIONS,
                "partitions are added");
        check(admin.listTopics().names().get().contains(made), "the topic is listed");

        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, made);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(
                new AlterConfigOp(new ConfigEntry("retention.ms", "7"), AlterConfigOp.OpType.SET),
                new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND)))).all().get();
        Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        check(config.get(TopicConfig.RETENTION_MS_CONFIG).value().equals("7"), "the config is set");
        check(config.get(TopicConfig.RETENTION_MS_CONFIG).source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, "its source");
        check(config.get(TopicConfig.CLEANUP_POLICY_CONFIG).value().contains("compact"), "the list is longer");
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "0");
        check(admin.describeConfigs(List.of(broker)).all().get().get(broker).get("num.partitions").isReadOnly(), "broker configs");

        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            write(producer, made, "admin", 40);
        }
        check(admin.listOffsets(Map.of(first, OffsetSpec.latest())).partitionResult(first).get().offset() == 10, "the latest offset");
        check(admin.listOffsets(Map.of(first, OffsetSpec.maxTimestamp())).partitionResult(first).get().offset() >= 0, "the newest");
        check(admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(4))).lowWatermarks().get(first).get().lowWatermark() == 4,
                "records are deleted");
        check(admin.listOffsets(Map.of(first, OffsetSpec.earliest())).partitionResult(first).get().offset() == 4, "the earliest offset");
        check(admin.describeLogDirs(List.of(0)).allDescriptions().get().get(0).values().stream()
                .anyMatch(dir -> dir.replicaInfos().get(first).size() > 0), "the log's size");
        check(admin.listPartitionReassignments().reassignments().get().isEmpty(), "nothing is being moved");

        admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(5))).all().get();
        check(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(first).offset() == 5, "the offset is set");
        check(describe(group).members().isEmpty(), "the group has no members");
        admin.deleteConsumerGroupOffsets(group, Set.of(first)).all().get();
        admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(6))).all().get();
        admin.deleteConsumerGroups(List.of(group)).all().get();
        refused(GroupIdNotFoundException.class, admin.deleteConsumerGroups(List.of(group)).all());
        admin.deleteTopics(List.of(made)).all().get();
        refused(UnknownTopicOrPartitionException.class, admin.deleteTopics(List.of(made)).all());
    }

    // ---- words

    private static void refused(Class<? extends Exception> kind, Future<?> call) throws Exception {
        try {
            call.get();
        } catch (ExecutionException error) {
            check(kind.isInstance(error.getCause()), "refused with " + error.getCause());
            return;
        }
        throw new AssertionError("not refused with " + kind);
    }

    private static <T> T get(Future<T> call) {
        try {
            return call.get();
        } catch (ExecutionException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private static List<TopicPartition> partitions(String topic) {
        List<TopicPartition> partitions = new ArrayList<>();
        for (int at = 0; at < PARTITIONS; at++) {
            partitions.add(new TopicPartition(topic, at));
        }
        return partitions;
    }

    private static List<String> sorted(List<String> values) {
        List<String> copy = new ArrayList<>(values);
        Collections.sort(copy);
        return copy;
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    private static void until(String what, BooleanSupplier condition) {
        long deadline = System.nanoTime() + Duration.ofSeconds(60).toNanos();
        while (!condition.getAsBoolean()) {
            check(System.nanoTime() < deadline, "it never came to this: " + what);
        }
    }
}
