"""Finished siblings: what the episodes of a task came to so far, and what the journal keeps of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from forebay.batching.updates import outcomes_of
from forebay.errors import StoreError
from forebay.objectives.advantages import Outcome
from forebay.staleness import BatchShares, Comparable, OutstandingGroup, comparable, family_of
from forebay.store.protocol import JournalEntry, TakenGroup

# By family, and in it by the name of the part.
Families = dict[str, dict[str, Outcome]]


class _Finished(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of an episode, as a journal entry keeps it."""

    group_id: str
    reward: float | None
    num_tokens: int


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(dict[str, list[_Finished]])


def encode_families(families: Mapping[str, Mapping[str, Outcome]]) -> bytes:
    """Return what a journal entry keeps of the outcomes that its episodes are compared with."""
    return _encode(
        {
            family: [_Finished(name, outcome.reward, outcome.num_tokens) for name, outcome in members.items()]
            for family, members in families.items()
        }
    )


def decode_families(packing: bytes) -> Families:
    """Return the outcomes that a journal entry keeps, in the order in which they are added up.

    Raises:
        StoreError: They cannot be read.

    Example:
        >>> families = {"g00000012": {"g00000012-0": Outcome(1.0, 5), "g00000012-1": Outcome(None, 0)}}
        >>> decode_families(encode_families(families)) == families
        True
    """
    if not packing:
        return {}
    try:
        found = _decoder.decode(packing)
    except msgspec.DecodeError as error:
        raise StoreError(f"a journal entry's finished siblings cannot be read: {error}") from error
    return {
        family: {one.group_id: Outcome(one.reward, one.num_tokens) for one in members}
        for family, members in found.items()
    }


class FinishedSiblings:
    """Knows which episodes of a task have finished, and what they came to.

    An episode is compared with those of its siblings that had finished when it was taken: trained in earlier
    batches, in the same, or still stored. The store forgets the first of these, so each journal entry keeps
    the outcomes that its batch is compared with; a resumed learner knows what the journal's entries keep, and
    a batch that is made again gets the same advantages.

    Args:
        siblings_needed: How many finished siblings are enough for an episode to be trained.
        read_group: Reads a settled group that stays in the store.
        journal: The batches that are not forgotten.
        most_families: Families to remember of which nothing is outstanding any more.
    """

    def __init__(
        self,
        siblings_needed: int,
        read_group: Callable[[str], TakenGroup],
        journal: Iterable[JournalEntry],
        most_families: int,
    ) -> None:
        self._siblings_needed = siblings_needed
        self._read_group = read_group
        self._most_families = most_families
        self._known: Families = {}
        self._settled: dict[str, list[str]] = {}
        for entry in journal:
            for family, members in decode_families(entry.packing).items():
                self._known.setdefault(family, {}).update(members)

    def look(
        self, outstanding: Sequence[OutstandingGroup], groups_per_batch: int, shares: BatchShares | None
    ) -> Comparable:
        """Tell which groups can be compared with finished siblings; see `comparable`."""
        groups = tuple(outstanding)
        self._settled = {}
        for group in groups:
            if group.settled:
                self._settled.setdefault(family_of(group.group_id), []).append(group.group_id)
        self._forget({family_of(group.group_id) for group in groups})
        return comparable(groups, self._known, self._siblings_needed, groups_per_batch, shares)

    def add(self, groups: Iterable[TakenGroup]) -> None:
        """Note what groups came to: they have finished, whatever becomes of them."""
        for group in groups:
            name = group.spec.group_id
            # The newest are remembered longest.
            members = self._known.pop(family_of(name), {})
            self._known[family_of(name)] = members | {name: outcomes_of(group)[0]}

    def packing(self, groups: Sequence[TakenGroup]) -> bytes:
        """Return what a batch is compared with: all that finished of its families, itself included."""
        self.add(groups)
        families = dict.fromkeys(family_of(group.spec.group_id) for group in groups)
        for family in families:
            self.add(self._stored(family))
        return encode_families({family: self._known[family] for family in families})

    def _stored(self, family: str) -> list[TakenGroup]:
        """Read what has settled and is not known yet; what cannot be read is no sibling."""
        found = []
        for name in self._settled.get(family, ()):
            if name not in self._known[family]:
                try:
                    found.append(self._read_group(name))
                except StoreError:
                    continue
        return found

    def _forget(self, outstanding: set[str]) -> None:
        idle = [family for family in self._known if family not in outstanding]
        for family in idle[: max(0, len(idle) - self._most_families)]:
            del self._known[family]
