"""What the members of a classic group ask of it: join, sync, heartbeat, leave, commit. The machine is classic_rebalance's.

Each request is checked first (is it a member, of this generation, with protocols that fit) and then acts on the machine; the
order of the checks is Kafka's, for clients act on the first fault that they see.
"""

from __future__ import annotations

from penstock.coordination.classic_members import ClassicMember, metadata_bytes
from penstock.coordination.classic_rebalance import ClassicRebalance
from penstock.coordination.classic_states import HEARTBEAT_FAULT, SYNC_FAULT, State
from penstock.coordination.group_commands import (
    NO_MEMBER,
    CommitOffsets,
    Effects,
    Heartbeat,
    HeartbeatResult,
    JoinGroup,
    JoinResult,
    LeaveGroup,
    LeaveResult,
    LeavingMember,
    SyncGroup,
    SyncResult,
    Ticket,
)
from penstock.model import limits
from penstock.model.errors import Fault


class ClassicGroup(ClassicRebalance):
    __slots__ = ()

    # ------------------------------------------------------------------------------------------------------------- join

    def join(self, command: JoinGroup, ticket: Ticket, new_id: str, now_ms: int, effects: Effects) -> None:
        """`new_id` is for a member that brings none."""
        fault = self._join_fault(command)
        if fault is not Fault.NONE:
            effects.answer(ticket, JoinResult(fault, command.member_id))
        elif command.member_id == NO_MEMBER:
            self._join_new(command, ticket, new_id, now_ms, effects)
        elif command.member_id in self._pending:
            self._add(command.member_id, command, ticket, now_ms, effects)
        else:
            self._join_known(self.members[command.member_id], command, ticket, now_ms, effects)
        self._complete_if_all_joined(now_ms, effects)

    def _join_fault(self, command: JoinGroup) -> Fault:
        member_id = command.member_id
        if not self._has_room(member_id):
            # Kafka's way to shrink a group that is over a lowered limit: the last to rejoin are out.
            self._pending.pop(member_id, None)
            if member_id in self.members:
                self.members.remove(member_id)
            return Fault.GROUP_MAX_SIZE_REACHED
        if not self._has_room_for(command):
            return Fault.GROUP_MAX_SIZE_REACHED
        if not command.protocol_type or not command.protocols:
            return Fault.INCONSISTENT_GROUP_PROTOCOL
        if len(self.members) and (
            command.protocol_type != self.protocol_type or not self.members.support(command.protocols)
        ):
            return Fault.INCONSISTENT_GROUP_PROTOCOL
        if member_id == NO_MEMBER or (member_id in self._pending and command.instance_id is None):
            return Fault.NONE
        return self.members.fault(member_id, command.instance_id)

    def _has_room(self, member_id: str) -> bool:
        size_max = self._settings.group_size_max
        if self.state is State.PREPARING:
            return member_id in self._joining or len(self._joining) < size_max
        return self.state is State.EMPTY or member_id in self.members or len(self.members) < size_max

    def _has_room_for(self, command: JoinGroup) -> bool:
        """Whether the group has room for this metadata in place of the member's current metadata."""
        old_id = command.member_id or self.members.static_id(command.instance_id or "") or NO_MEMBER
        before = metadata_bytes(self.members[old_id].protocols) if old_id in self.members else 0
        grown = metadata_bytes(command.protocols) - before
        return grown <= 0 or self.members.metadata_bytes + grown <= limits.GROUP_METADATA_BYTES_MAX

    def _join_new(self, command: JoinGroup, ticket: Ticket, new_id: str, now_ms: int, effects: Effects) -> None:
        if command.instance_id is not None:
            member_id = f"{command.instance_id}-{new_id}"
            old_id = self.members.static_id(command.instance_id)
            if old_id is None:
                self._add(member_id, command, ticket, now_ms, effects)
            else:
                self._replace(old_id, member_id, command, ticket, now_ms, effects)
            return
        member_id = f"{command.client_id}-{new_id}"
        if command.needs_member_id and len(self._pending) >= self._settings.group_size_max:
            effects.answer(ticket, JoinResult(Fault.GROUP_MAX_SIZE_REACHED, NO_MEMBER))
        elif command.needs_member_id:
            self._pending[member_id] = self._want(now_ms + command.session_timeout_ms)
            effects.answer(ticket, JoinResult(Fault.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(member_id, command, ticket, now_ms, effects)

    def _join_known(
        self, member: ClassicMember, command: JoinGroup, ticket: Ticket, now_ms: int, effects: Effects
    ) -> None:
        is_changed = member.protocols != command.protocols
        # A leader that joins a stable group wants to assign anew, for reasons that its subscription need not show.
        wants_rebalance = is_changed or (self.state is State.STABLE and self.members.leader == member.member_id)
        if self.state is State.PREPARING or wants_rebalance:
            self.members.update(member, command)
            self._park_join(member, ticket, effects)
            self._rebalance(now_ms, effects)
            return
        # Nothing new: it missed an answer. It gets the current generation, and may ask for its assignment.
        self._restart_session(member, now_ms)
        effects.answer(ticket, self._joined(member))

    def _add(self, member_id: str, command: JoinGroup, ticket: Ticket, now_ms: int, effects: Effects) -> None:
        self._pending.pop(member_id, None)
        if not len(self.members):
            self.protocol_type = command.protocol_type
        member = ClassicMember.joining(member_id, command)
        self.members.add(member)
        member.is_new = True
        self._newcomer = True
        self._park_join(member, ticket, effects)
        member.deadline_ms = self._want(now_ms + self._settings.new_member_join_timeout_ms)
        self._rebalance(now_ms, effects)

    def _replace(
        self, old_id: str, new_id: str, command: JoinGroup, ticket: Ticket, now_ms: int, effects: Effects
    ) -> None:
        """A static member restarted. While the group is stable that is no reason to rebalance."""
        old_leader = self.members.leader or ""
        self._answer_parked(old_id, Fault.FENCED_INSTANCE_ID, effects)
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(new_id)
        member = self.members.replace(old_id, new_id)
        member.is_new = False
        self.members.update(member, command)
        if self.state is State.STABLE and self.members.elected_protocol() == self.protocol:
            self._restart_session(member, now_ms)
            self._store(now_ms, effects)
            if command.may_skip_assignment:
                is_leader = self.members.leader == new_id
                effects.answer(ticket, self._joined(member)._replace(skip_assignment=is_leader))
            else:
                # An older client would assign anew if it saw itself as the leader: it is shown the old id (KIP-345).
                effects.answer(ticket, self._joined(member)._replace(leader=old_leader, members=()))
            return
        self._park_join(member, ticket, effects)
        self._rebalance(now_ms, effects)

    # ------------------------------------------------------------------------------------------------------------- sync

    def sync(self, command: SyncGroup, ticket: Ticket, now_ms: int, effects: Effects) -> None:
        fault = self._sync_fault(command)
        if fault is not Fault.NONE:
            effects.answer(ticket, SyncResult(fault))
            return
        member = self.members[command.member_id]
        self._unsynced.discard(member.member_id)
        if self.state is State.STABLE:
            self._restart_session(member, now_ms)
            effects.answer(ticket, self._synced(member))
            return
        earlier = self._syncing.get(member.member_id)
        if earlier is not None:
            effects.answer(earlier, SyncResult(Fault.REBALANCE_IN_PROGRESS))
        self._syncing[member.member_id] = ticket
        member.deadline_ms = None
        if member.member_id == self.members.leader:
            self._assign(command, now_ms, effects)

    def _assign(self, command: SyncGroup, now_ms: int, effects: Effects) -> None:
        for member in self.members:
            member.assignment = command.assignments.get(member.member_id, b"")
        self._become(State.STABLE)
        self._store(now_ms, effects)
        syncing, self._syncing = self._syncing, {}
        for member_id, ticket in syncing.items():
            member = self.members[member_id]
            self._restart_session(member, now_ms)
            effects.answer(ticket, self._synced(member))

    def _synced(self, member: ClassicMember) -> SyncResult:
        return SyncResult(Fault.NONE, member.assignment, self.protocol_type, self.protocol)

    def _sync_fault(self, command: SyncGroup) -> Fault:
        fault = self._generation_fault(command.member_id, command.instance_id, command.generation)
        if fault is not Fault.NONE:
            return fault
        if command.protocol_type not in (None, self.protocol_type) or command.protocol not in (None, self.protocol):
            return Fault.INCONSISTENT_GROUP_PROTOCOL
        return SYNC_FAULT[self.state]

    def _generation_fault(self, member_id: str, instance_id: str | None, generation: int) -> Fault:
        fault = self.members.fault(member_id, instance_id)
        if fault is Fault.NONE and generation != self.generation:
            return Fault.ILLEGAL_GENERATION
        return fault

    # ---------------------------------------------------------------------------------------------- heartbeat and leave

    def heartbeat(self, command: Heartbeat, ticket: Ticket, now_ms: int, effects: Effects) -> None:
        fault = self._generation_fault(command.member_id, command.instance_id, command.generation)
        if fault is Fault.NONE:
            self._restart_session(self.members[command.member_id], now_ms)
            fault = HEARTBEAT_FAULT[self.state]
        effects.answer(ticket, HeartbeatResult(fault))

    def leave(self, command: LeaveGroup, ticket: Ticket, now_ms: int, effects: Effects) -> None:
        size = len(self.members)
        results = tuple((member, self._leave(member, effects)) for member in command.members)
        self._after_removal(size, now_ms, effects)
        effects.answer(ticket, LeaveResult(Fault.NONE, results))

    def _leave(self, leaving: LeavingMember, effects: Effects) -> Fault:
        member_id, instance_id = leaving
        if member_id == NO_MEMBER and instance_id is not None:
            # An administrator removes a static member without knowing its id.
            member_id = self.members.static_id(instance_id) or NO_MEMBER
        if instance_id is None and self._pending.pop(member_id, None) is not None:
            return Fault.NONE
        fault = self.members.fault(member_id, instance_id)
        if fault is Fault.NONE:
            self._remove(member_id, effects)
        return fault

    def commit_fault(self, command: CommitOffsets, now_ms: int) -> Fault:
        """Whether this committer may commit: a member of this generation, or anybody while the group is empty."""
        if command.generation < 0 and self.state is State.EMPTY:
            return Fault.NONE
        is_transactional = command.producer is not None
        if command.generation < 0 and command.member_id == NO_MEMBER and command.instance_id is None:
            # Older producers cannot say for whom they commit (KIP-447).
            return Fault.NONE if is_transactional else Fault.UNKNOWN_MEMBER_ID
        fault = self._generation_fault(command.member_id, command.instance_id, command.generation)
        if fault is Fault.NONE:
            if self.state is State.COMPLETING and not is_transactional:
                return Fault.REBALANCE_IN_PROGRESS
            self._restart_session(self.members[command.member_id], now_ms)
        return fault
