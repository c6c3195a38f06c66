// What the matrix checks of kafkajs: every feature in one process, a line each.
// `node matrix.js BOOTSTRAP PREFIX` writes "ok FEATURE", "gap FEATURE WHY" or "failed FEATURE WHY".
'use strict'

const assert = require('node:assert')
const { AssignerProtocol, ConfigResourceTypes, Kafka, PartitionAssigners, logLevel } = require('kafkajs')

const [bootstrap, prefix] = process.argv.slice(2)
const PARTITIONS = 4
const kafka = new Kafka({ clientId: 'matrix', brokers: [bootstrap], logLevel: logLevel.NOTHING })
const admin = kafka.admin()

class Gap extends Error {}

async function until(what, condition) {
  const deadline = Date.now() + 60_000
  while (!(await condition())) {
    assert(Date.now() < deadline, `it never came to this: ${what}`)
    await new Promise(resolve => setTimeout(resolve, 20))
  }
}

async function write(producer, topic, word, count) {
  const messages = Array.from({ length: count }, (_, at) => ({
    key: `key ${at}`,
    value: `${word} ${at}`,
    partition: at % PARTITIONS,
    headers: { number: `${at}` },
  }))
  await producer.send({ topic, messages, acks: -1 })
  return messages.map(message => message.value)
}

// ---- groups

class Member {
  constructor(topic, settings = {}) {
    this.topic = topic
    this.values = []
    this.assignments = []
    this.consumer = kafka.consumer({ groupId: `${topic}-group`, heartbeatInterval: 300, maxWaitTimeInMs: 200, ...settings })
    this.consumer.on(this.consumer.events.GROUP_JOIN, ({ payload }) => {
      this.assignments.push(payload.memberAssignment[topic] || [])
    })
  }

  async open() {
    await this.consumer.connect()
    await this.consumer.subscribe({ topics: [this.topic], fromBeginning: true })
    await this.consumer.run({
      eachMessage: async ({ message }) => {
        if (message.headers.number) assert(message.value.toString().endsWith(` ${message.headers.number}`))
        this.values.push(message.value.toString())
      },
    })
    return this
  }

  get assigned() {
    return this.assignments.at(-1) || []
  }

  close() {
    return this.consumer.disconnect()
  }
}

async function read(topic, count, settings) {
  const member = await new Member(topic, { groupId: `${topic}-reader-${settings.readUncommitted}`, ...settings }).open()
  try {
    await until(`${count} records of ${topic}`, () => member.values.length >= count)
  } finally {
    await member.close()
  }
  return member.values.sort()
}

// ---- the checks

async function produce(topic) {
  const producer = kafka.producer()
  await producer.connect()
  const sent = await write(producer, topic, 'plain', 50)
  const zipped = Array.from({ length: 50 }, (_, at) => ({ key: 'k', value: `zipped ${at}`, partition: 0 }))
  await producer.send({ topic, messages: zipped, acks: -1, compression: 1 })
  await producer.disconnect()
  const seen = await read(topic, 100, { readUncommitted: true })
  assert.deepStrictEqual(seen, [...sent, ...zipped.map(message => message.value)].sort())
}

async function idempotent(topic) {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  assert(producer.isIdempotent())
  const sent = [...(await write(producer, topic, 'once', 40)), ...(await write(producer, topic, 'more', 40))]
  await producer.disconnect()
  assert.deepStrictEqual(await read(topic, 80, { readUncommitted: true }), sent.sort())
}

async function transactional(topic) {
  const producer = kafka.producer({ transactionalId: `${topic}-id`, idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const offsets = offset => ({
    consumerGroupId: `${topic}-offsets`,
    topics: [{ topic, partitions: [{ partition: 0, offset }] }],
  })
  const first = await producer.transaction()
  const committed = await write(first, topic, 'committed', 12)
  await first.sendOffsets(offsets('3'))
  await first.commit()
  const second = await producer.transaction()
  const aborted = await write(second, topic, 'aborted', 8)
  await second.sendOffsets(offsets('4'))
  await second.abort()
  const third = await producer.transaction()
  committed.push(...(await write(third, topic, 'later', 10)))
  await third.commit()
  await producer.disconnect()
  assert.deepStrictEqual(await read(topic, 22, { readUncommitted: false }), committed.sort())
  assert.deepStrictEqual(await read(topic, 30, { readUncommitted: true }), [...committed, ...aborted].sort())
  const [found] = await admin.fetchOffsets({ groupId: `${topic}-offsets`, topics: [topic] })
  assert.strictEqual(found.partitions.find(row => row.partition === 0).offset, '3')
}

async function classic(topic) {
  const groupId = `${topic}-group`
  const first = await new Member(topic).open()
  await until('the first member has all', () => first.assigned.length === PARTITIONS)
  const second = await new Member(topic).open()
  await until('two members share', () => first.assigned.length === 2 && second.assigned.length === 2)
  const producer = kafka.producer()
  await producer.connect()
  const sent = await write(producer, topic, 'shared', 40)
  await producer.disconnect()
  await until('everything is read', () => first.values.length + second.values.length >= sent.length)
  assert.deepStrictEqual([...first.values, ...second.values].sort(), sent.sort())
  const { groups } = await admin.describeGroups([groupId])
  assert.deepStrictEqual([groups[0].state, groups[0].members.length], ['Stable', 2])
  await second.close()
  await until('the first member has all again', () => first.assigned.length === PARTITIONS)
  await first.close()
  const [offsets] = await admin.fetchOffsets({ groupId, topics: [topic] })
  assert.deepStrictEqual(offsets.partitions.map(row => row.offset), ['10', '10', '10', '10'])
}

async function cooperative() {
  assert.deepStrictEqual(Object.keys(PartitionAssigners), ['roundRobin'])
  assert(AssignerProtocol.MemberMetadata.encode({ version: 1, topics: ['t'] }).length > 0)
  throw new Gap('it has an eager round robin assignor only')
}

async function consumer() {
  const keys = require('kafkajs/src/protocol/requests/apiKeys')
  assert(!Object.values(keys).includes(68))
  throw new Gap('it has no ConsumerGroupHeartbeat')
}

async function staticMembership(topic) {
  const member = await new Member(topic, { groupInstanceId: 'one' }).open()
  await until('the member has all', () => member.assigned.length === PARTITIONS)
  await member.close()
  const { groups } = await admin.describeGroups([`${topic}-group`])
  assert.deepStrictEqual(groups[0].members, [])
  throw new Gap('its consumer takes no instance id')
}

async function adminCalls(topic) {
  const made = `${topic}-made`
  const groupId = `${topic}-group`
  assert.strictEqual((await admin.describeCluster()).brokers.length, 1)
  assert(await admin.createTopics({ topics: [{ topic: made, numPartitions: 2, configEntries: [{ name: 'retention.ms', value: '5' }] }] }))
  assert(!(await admin.createTopics({ topics: [{ topic: made }] })))
  await admin.createPartitions({ topicPartitions: [{ topic: made, count: PARTITIONS }] })
  const { topics } = await admin.fetchTopicMetadata({ topics: [made] })
  assert.strictEqual(topics[0].partitions.length, PARTITIONS)
  assert((await admin.listTopics()).includes(made))
  const resource = { type: ConfigResourceTypes.TOPIC, name: made }
  const config = async () => {
    const { resources } = await admin.describeConfigs({ resources: [resource], includeSynonyms: true })
    return Object.fromEntries(resources[0].configEntries.map(entry => [entry.configName, entry.configValue]))
  }
  assert.strictEqual((await config())['retention.ms'], '5')
  await admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '77777' }] }] })
  assert.strictEqual((await config())['retention.ms'], '77777')
  const producer = kafka.producer()
  await producer.connect()
  await write(producer, made, 'admin', 40)
  await producer.disconnect()
  assert.deepStrictEqual((await admin.fetchTopicOffsets(made)).map(row => row.high), ['10', '10', '10', '10'])
  assert.strictEqual((await admin.fetchTopicOffsetsByTimestamp(made, 0)).length, PARTITIONS)
  await admin.deleteTopicRecords({ topic: made, partitions: [{ partition: 0, offset: '4' }] })
  assert.strictEqual((await admin.fetchTopicOffsets(made)).find(row => row.partition === 0).low, '4')
  await admin.setOffsets({ groupId, topic: made, partitions: [{ partition: 0, offset: '5' }] })
  const [offsets] = await admin.fetchOffsets({ groupId, topics: [made] })
  assert.strictEqual(offsets.partitions[0].offset, '5')
  await admin.resetOffsets({ groupId, topic: made, earliest: true })
  assert((await admin.listGroups()).groups.some(row => row.groupId === groupId))
  assert.strictEqual((await admin.deleteGroups([groupId]))[0].errorCode, 0)
  await admin.deleteTopics({ topics: [made] })
  assert(!(await admin.listTopics()).includes(made))
}

const CHECKS = { produce, idempotent, transactional, classic, cooperative, consumer, static: staticMembership, admin: adminCalls }

async function main() {
  await admin.connect()
  for (const [feature, check] of Object.entries(CHECKS)) {
    const topic = `${prefix}-${feature}`
    await admin.createTopics({ topics: [{ topic, numPartitions: PARTITIONS }] })
    try {
      await check(topic)
      console.log(`ok ${feature}`)
    } catch (error) {
      if (!(error instanceof Gap)) console.error(error)
      console.log(`${error instanceof Gap ? 'gap' : 'failed'} ${feature} ${error.message.split('\n')[0]}`)
    }
  }
  await admin.disconnect()
}

main().then(
  () => process.exit(0),
  error => {
    console.error(error)
    process.exit(1)
  }
)
