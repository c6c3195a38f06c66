"""The machine of a classic group: members agree on a generation, one of them assigns, all of them hold what it assigned.

    Empty                no members (a group of offsets alone is empty for ever)
    PreparingRebalance   members are asked to join; those who did wait in `_joining`
    CompletingRebalance  all have joined and know the generation; those who want their assignment wait in `_syncing`
    Stable               the leader's assignment is out
    Dead                 deleted; nobody asks it any more

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable -> PreparingRebalance ...      Empty -> Dead
    and CompletingRebalance -> PreparingRebalance when somebody comes or goes, PreparingRebalance -> Empty when all went

Rules:

1. What the log knows is `stored`: the group as it last became Stable or Empty. It changes only through `replay`; all else is
   volatile, and `resume` makes it from `stored` after a restart, with a fresh session for everybody.
2. A parked join is answered by the join deadline, a parked sync by the sync deadline: at the first, the generation begins
   with those who joined; at the second, members that owe a sync are out and the others rebalance. A member whose request
   is parked cannot lose its session, except a new one, who might have hung up without having an id to be known by.
3. A generation begins only in `_begin_generation`, and everything that a member says is checked against it.

Deadlines move all the time, so `wake_ms` is only a lower bound of the next one: `tick` finds out and sets it anew.
"""

from __future__ import annotations

from penstock.coordination.classic_members import ClassicMember, ClassicMembers
from penstock.coordination.classic_states import TRANSITIONS, State
from penstock.coordination.group_commands import Effects, GroupSettings, JoinResult, SyncResult, Ticket
from penstock.coordination.group_records import ClassicGroupRecord, StoredGroup
from penstock.model.errors import Fault

FOREVER_MS = 2**63 - 1


class ClassicRebalance:
    __slots__ = (
        "_initial_left_ms",
        "_is_initial",
        "_join_deadline_ms",
        "_joining",
        "_newcomer",
        "_pending",
        "_settings",
        "_sync_deadline_ms",
        "_syncing",
        "_unsynced",
        "generation",
        "group",
        "members",
        "protocol",
        "protocol_type",
        "scheduled_ms",
        "state",
        "stored",
        "wake_ms",
    )

    def __init__(self, group: str, settings: GroupSettings) -> None:
        self.group = group
        self._settings = settings
        self.stored: StoredGroup | None = None
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.members = ClassicMembers()
        self._pending: dict[str, int] = {}
        """Ids given out to dynamic members who have not come back with them yet, and until when they may."""
        self._joining: dict[str, Ticket] = {}
        self._syncing: dict[str, Ticket] = {}
        self._unsynced: set[str] = set()
        """Members of this generation who have not asked for their assignment yet."""
        self._join_deadline_ms: int | None = None
        self._is_initial = False
        self._initial_left_ms = 0
        self._newcomer = False
        self._sync_deadline_ms: int | None = None
        self.wake_ms = FOREVER_MS
        self.scheduled_ms = FOREVER_MS
        """When the coordinator will call; its own note."""

    # -------------------------------------------------------------------------------------------------- what is durable

    def replay(self, value: StoredGroup | None) -> None:
        self.stored = value

    def resume(self, now_ms: int) -> None:
        """After loading: the group goes on where the log left it, and nobody is late yet."""
        stored = self.stored
        if stored is None:
            return
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type
        self.protocol = stored.protocol
        for member in stored.members:
            self.members.add(ClassicMember.stored(member, stored.protocol or ""))
        if stored.members:
            self.state = State.STABLE
            if stored.leader is not None and stored.leader in self.members:
                self.members.leader = stored.leader
            for known in self.members:
                self._restart_session(known, now_ms)

    def _store(self, now_ms: int, effects: Effects) -> None:
        leader = self.members.leader
        members = tuple(member.store(self.protocol) for member in self.members)
        value = StoredGroup(self.protocol_type, self.generation, self.protocol, leader, now_ms, members)
        effects.write(ClassicGroupRecord(self.group, value))

    def _become(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    # -------------------------------------------------------------------------------------------------------- rebalance

    def _rebalance(self, now_ms: int, effects: Effects) -> None:
        """Ask everybody to join again, unless that is under way."""
        if self.state is State.PREPARING:
            return
        syncing, self._syncing = self._syncing, {}
        for member_id, ticket in syncing.items():
            self._restart_session(self.members[member_id], now_ms)
            effects.answer(ticket, SyncResult(Fault.REBALANCE_IN_PROGRESS))
        self._unsynced.clear()
        self._sync_deadline_ms = None
        timeout_ms = self.members.rebalance_timeout_ms
        delay_ms = self._settings.initial_rebalance_delay_ms
        self._is_initial = self.state is State.EMPTY and delay_ms > 0
        self._become(State.PREPARING)
        if self._is_initial:
            # The first members of a group rarely come alone: a short wait spares them rebalances (KIP-134).
            self._newcomer = False
            self._initial_left_ms = max(timeout_ms - delay_ms, 0)
            self._join_deadline_ms = self._want(now_ms + delay_ms)
        else:
            self._join_deadline_ms = self._want(now_ms + timeout_ms)

    def _complete_if_all_joined(self, now_ms: int, effects: Effects) -> None:
        if self.state is not State.PREPARING or self._is_initial or self._pending:
            return
        if len(self._joining) == len(self.members):
            self._complete_join(now_ms, effects)

    def _join_deadline_passed(self, now_ms: int, effects: Effects) -> None:
        if self._is_initial and self._newcomer and self._initial_left_ms > 0:
            delay_ms = min(self._settings.initial_rebalance_delay_ms, self._initial_left_ms)
            self._newcomer = False
            self._initial_left_ms -= delay_ms
            self._join_deadline_ms = self._want(now_ms + delay_ms)
        else:
            self._complete_join(now_ms, effects)

    def _complete_join(self, now_ms: int, effects: Effects) -> None:
        for member in self.members:
            if member.member_id not in self._joining and member.instance_id is None:
                self.members.remove(member.member_id)
        if len(self.members) and not self._joining:
            # Static members only, all of them away: nobody could lead. Their sessions decide.
            self._join_deadline_ms = self._want(now_ms + self.members.rebalance_timeout_ms)
            return
        self._join_deadline_ms = None
        self._is_initial = False
        self._begin_generation(now_ms, effects)

    def _begin_generation(self, now_ms: int, effects: Effects) -> None:
        self.generation += 1
        if not len(self.members):
            self.protocol = None
            self._become(State.EMPTY)
            self._store(now_ms, effects)
            return
        if self.members.leader not in self._joining:
            self.members.leader = next(iter(self._joining))
        self.protocol = self.members.elected_protocol()
        self._become(State.COMPLETING)
        for member in self.members:
            member.assignment = b""
        joining, self._joining = self._joining, {}
        for member_id, ticket in joining.items():
            member = self.members[member_id]
            member.is_new = False
            self._restart_session(member, now_ms)
            self._unsynced.add(member_id)
            effects.answer(ticket, self._joined(member))
        self._sync_deadline_ms = self._want(now_ms + self.members.rebalance_timeout_ms)

    def _park_join(self, member: ClassicMember, ticket: Ticket, effects: Effects) -> None:
        earlier = self._joining.get(member.member_id)
        if earlier is not None:
            effects.answer(earlier, JoinResult(Fault.REBALANCE_IN_PROGRESS, member.member_id))
        self._joining[member.member_id] = ticket
        member.deadline_ms = None

    def _joined(self, member: ClassicMember) -> JoinResult:
        leader = self.members.leader or ""
        members = self.members.roster(self.protocol) if leader == member.member_id else ()
        return JoinResult(
            Fault.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            leader,
            members=members,
        )

    def _remove(self, member_id: str, effects: Effects) -> None:
        self._answer_parked(member_id, Fault.UNKNOWN_MEMBER_ID, effects)
        self._unsynced.discard(member_id)
        self.members.remove(member_id)

    def _after_removal(self, size_before: int, now_ms: int, effects: Effects) -> None:
        if len(self.members) < size_before:
            self._rebalance(now_ms, effects)
        self._complete_if_all_joined(now_ms, effects)

    def _answer_parked(self, member_id: str, fault: Fault, effects: Effects) -> None:
        joining = self._joining.pop(member_id, None)
        if joining is not None:
            effects.answer(joining, JoinResult(fault, member_id))
        syncing = self._syncing.pop(member_id, None)
        if syncing is not None:
            effects.answer(syncing, SyncResult(fault))

    # ------------------------------------------------------------------------------------------------------------- time

    def _want(self, deadline_ms: int) -> int:
        self.wake_ms = min(self.wake_ms, deadline_ms)
        return deadline_ms

    def _restart_session(self, member: ClassicMember, now_ms: int) -> None:
        if member.member_id not in self._joining and member.member_id not in self._syncing:
            member.deadline_ms = self._want(now_ms + member.session_timeout_ms)

    def tick(self, now_ms: int, effects: Effects) -> None:
        """Do what is due."""
        while self.wake_ms <= now_ms:
            self._end_sessions(now_ms, effects)
            if self._join_deadline_ms is not None and self._join_deadline_ms <= now_ms:
                self._join_deadline_passed(now_ms, effects)
            if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now_ms:
                self._sync_deadline_ms = None
                size = len(self.members)
                for member_id in tuple(self._unsynced):
                    self._remove(member_id, effects)
                self._after_removal(size, now_ms, effects)
            self.wake_ms = self._next_deadline_ms()

    def _end_sessions(self, now_ms: int, effects: Effects) -> None:
        for member_id, deadline_ms in tuple(self._pending.items()):
            if deadline_ms <= now_ms:
                del self._pending[member_id]
        size = len(self.members)
        for member in self.members:
            if member.deadline_ms is not None and member.deadline_ms <= now_ms:
                self._remove(member.member_id, effects)
        self._after_removal(size, now_ms, effects)

    def _next_deadline_ms(self) -> int:
        deadlines = [self._join_deadline_ms, self._sync_deadline_ms, *self._pending.values()]
        deadlines.extend(member.deadline_ms for member in self.members)
        return min((deadline for deadline in deadlines if deadline is not None), default=FOREVER_MS)

    # ------------------------------------------------------------------------------------- what the coordinator asks

    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    def is_nothing(self) -> bool:
        """Neither the log nor a client knows of it."""
        return self.stored is None and self.state is State.EMPTY and not self._pending

    def empty_since_ms(self) -> int | None:
        """Since when it has no members; None when it has some, or never had."""
        if self.state is not State.EMPTY or self.stored is None:
            return None
        return self.stored.state_timestamp_ms

    def die(self) -> None:
        self._become(State.DEAD)

    def unload(self, fault: Fault, effects: Effects) -> None:
        """Answer who waits; the shard goes away."""
        for member_id in {*self._joining, *self._syncing}:
            self._answer_parked(member_id, fault, effects)
