"""What the store should do, written a second time in the plainest way: lists, dictionaries, full scans."""

from __future__ import annotations

from dataclasses import dataclass, field

from forebay.store import GroupSpec, Slot
from forebay.trajectory import PolicyVersion


@dataclass
class ModelMember:
    state: str = "free"
    attempt: int = 0
    expires_s: float = 0.0
    version: PolicyVersion | None = None
    name: str = ""
    num_bytes: int = 0


@dataclass
class ModelGroup:
    spec: GroupSpec
    members: list[ModelMember]
    state: str = "open"
    deadline_s: float | None = None

    def of(self, *states: str) -> list[ModelMember]:
        return [member for member in self.members if member.state in states]

    @property
    def start(self) -> PolicyVersion | None:
        begun = [m.version for m in self.of("leased", "arrived") if m.version is not None]
        return min(begun, default=None)

    @property
    def num_bytes(self) -> int:
        arrived = sum(member.num_bytes for member in self.of("arrived"))
        return arrived + self.spec.member_bytes * len(self.of("free", "leased"))


@dataclass
class StoreModel:
    capacity_groups: int
    capacity_bytes: int
    now_s: float
    groups: dict[str, ModelGroup] = field(default_factory=dict)
    journal: dict[int, tuple[str, ...]] = field(default_factory=dict)
    incarnation: int = 0
    begun: bool = False
    published: int = 0
    next_serial: int = 0
    committed: int = 0
    last_step: int = 0
    replayed: int = 0
    acknowledged: set[str] = field(default_factory=set)
    trained: list[str] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)

    # Actors

    def claim(self, num: int, ttl_s: float, version: PolicyVersion) -> list[tuple[str, int, int]]:
        self.expire()
        claimed: list[tuple[str, int, int]] = []
        for group in sorted(self.groups.values(), key=lambda g: g.spec.serial):
            for index, member in enumerate(group.members):
                if member.state == "free" and len(claimed) < num:
                    member.state, member.expires_s = "leased", self.now_s + ttl_s
                    member.version = max(version, group.spec.min_version)
                    if group.deadline_s is None:
                        group.deadline_s = self.now_s + group.spec.deadline_s
                    claimed.append((group.spec.group_id, index, member.attempt))
        return claimed

    def held(self, slot: Slot) -> ModelMember | None:
        group = self.groups.get(slot.group_id)
        member = group.members[slot.member] if group else None
        return member if member and (member.state, member.attempt) == ("leased", slot.attempt) else None

    def heartbeat(self, slot: Slot, ttl_s: float) -> bool:
        member = self.held(slot)
        if member:
            member.expires_s = self.now_s + ttl_s
        return member is not None

    def fail(self, slot: Slot) -> None:
        if self.held(slot):
            group = self.groups[slot.group_id]
            self._end(group, group.members[slot.member])
            self._close(group)

    def release_slot(self, slot: Slot) -> None:
        member = self.held(slot)
        if member:
            member.state, member.version = "free", None

    def put(self, slot: Slot, name: str, num_bytes: int, version: PolicyVersion | None) -> str:
        group = self.groups.get(slot.group_id)
        if group is None:
            return "late"
        member = group.members[slot.member]
        if member.state == "arrived" and member.name == name:
            return "duplicate"
        if member.state not in ("free", "leased"):
            return "late"
        member.state, member.name, member.num_bytes, member.version = "arrived", name, num_bytes, version
        self.acknowledged.add(name)
        self._close(group)
        return "accepted"

    # Time

    def expire(self) -> None:
        for group in list(self.groups.values()):
            if group.state == "open" and not self._close(group):
                for member in group.of("leased"):
                    if member.expires_s <= self.now_s:
                        self._end(group, member)
                self._close(group)

    def _end(self, group: ModelGroup, member: ModelMember) -> None:
        member.attempt, member.version = member.attempt + 1, None
        member.state = "free" if member.attempt < group.spec.max_attempts else "failed"

    def _close(self, group: ModelGroup) -> bool:
        overdue = group.deadline_s is not None and group.deadline_s <= self.now_s
        waiting = group.of("free", "leased")
        if waiting and not overdue:
            return False
        if len(group.of("arrived")) >= group.spec.min_group_size:
            group.state = "settled"
            for member in waiting:
                member.state = "missing"
        else:
            self._remove(group, "deadline" if waiting else "failed")
        return True

    def _remove(self, group: ModelGroup, reason: str) -> None:
        for member in group.of("arrived"):
            self.rejected[member.name] = reason
        del self.groups[group.spec.group_id]

    # The learner

    def live(self) -> list[ModelGroup]:
        found = [group for group in self.groups.values() if group.state != "recorded"]
        return sorted(found, key=lambda group: group.spec.serial)

    def dispatch(self, specs: list[GroupSpec]) -> int:
        for done, spec in enumerate(specs):
            if spec.serial < self.next_serial:
                continue
            live = self.live()
            reserved = sum(group.num_bytes for group in live)
            needed = spec.group_size * spec.member_bytes
            if len(live) >= self.capacity_groups or reserved + needed > self.capacity_bytes:
                return done
            self.groups[spec.group_id] = ModelGroup(spec, [ModelMember() for _ in range(spec.group_size)])
            self.next_serial += 1
        return len(specs)

    def claimable(self) -> bool:
        return any(group.of("free") for group in self.groups.values())

    def settled(self) -> list[str]:
        return [group.spec.group_id for group in self.live() if group.state == "settled"]

    def taken(self) -> list[str]:
        return [group.spec.group_id for group in self.live() if group.state == "taken"]

    def set_state(self, group_ids: list[str] | tuple[str, ...], state: str) -> None:
        for group_id in group_ids:
            self.groups[group_id].state = state

    def reject(self, group_id: str, reason: str, replacement: GroupSpec | None) -> None:
        self._remove(self.groups[group_id], reason)
        if replacement:
            members = [ModelMember() for _ in range(replacement.group_size)]
            self.groups[replacement.group_id] = ModelGroup(replacement, members)
            self.next_serial = max(self.next_serial, replacement.serial + 1)

    def record(self, step: int, group_ids: tuple[str, ...]) -> None:
        self.journal[step] = group_ids
        self.set_state(group_ids, "recorded")
        self.last_step = self.replayed = step

    def commit(self, step: int) -> None:
        for past in sorted(s for s in self.journal if s <= step):
            for group_id in self.journal.pop(past):
                self.trained += [member.name for member in self.groups.pop(group_id).of("arrived")]
            self.committed = past

    def rewind(self, step: int) -> list[int]:
        self.incarnation += int(self.begun)
        self.published = min(step, self.published) if self.begun else step
        self.begun = True
        self.replayed = step
        self.last_step = max([step, *self.journal])
        for group in self.groups.values():
            if group.state == "taken":
                group.state = "settled"
            if group.state == "open" and group.deadline_s is not None:
                group.deadline_s = self.now_s + group.spec.deadline_s
        return sorted(s for s in self.journal if s > step)

    def truncate(self, step: int) -> None:
        for later in [s for s in self.journal if s > step]:
            self.set_state(self.journal.pop(later), "settled")
        self.last_step, self.replayed = min(self.last_step, step), min(self.replayed, step)

    # Totals

    def outstanding(self) -> int:
        return len(self.live()) + sum(len(ids) for step, ids in self.journal.items() if step > self.published)

    def stored(self) -> list[str]:
        return [member.name for group in self.groups.values() for member in group.of("arrived")]

    def totals(self) -> dict[str, object]:
        groups = self.groups.values()
        return {
            "incarnation": self.incarnation,
            "published": PolicyVersion(self.incarnation, self.published),
            "next_serial": self.next_serial,
            "outstanding": self.outstanding(),
            "open_groups": sum(group.state == "open" for group in groups),
            "settled_groups": len(self.settled()),
            "leased_slots": sum(len(group.of("leased")) for group in groups),
            "stored_trajectories": len(self.stored()),
            "live_bytes": sum(group.num_bytes for group in self.live()),
            "retained_bytes": sum(group.num_bytes for group in groups if group.state == "recorded"),
            "journal_steps": (min(self.journal), max(self.journal)) if self.journal else None,
        }
