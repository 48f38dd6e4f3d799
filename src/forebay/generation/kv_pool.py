"""Which computed prompts are kept, and which may be reused; no JAX is imported here.

Two bounded pools of saved cache rows. *Parked* rows belong to episodes that wait for their environment; they
may be older than the weights, within a bound. *Shared* rows hold prompts that other episodes may begin with
(group members have the same prompt, episodes of one environment the same system prompt); they are keyed by
version, so an update empties that pool.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.trajectory import PolicyVersion


class SavedRow(msgspec.Struct, frozen=True, eq=False):
    """A cache row outside the slots.

    Args:
        tokens: [N] int32, the tokens whose keys and values the row holds.
        kv_version: The oldest version that computed any of them.
        row: What the executor saved; opaque here.
    """

    tokens: npt.NDArray[np.int32]
    kv_version: PolicyVersion
    row: Any


class KvCounters(msgspec.Struct):
    """How often rows were parked, reused, evicted, too old, or computed again after an eviction."""

    parked: int = 0
    reused: int = 0
    evicted: int = 0
    too_old: int = 0
    recomputed: int = 0
    shared_hits: int = 0


def common_prefix(a: npt.NDArray[np.int32], b: npt.NDArray[np.int32]) -> int:
    """Return how many leading tokens two sequences have in common.

    Example:
        >>> common_prefix(np.array([1, 2, 3], np.int32), np.array([1, 2, 4, 5], np.int32))
        2
    """
    size = min(len(a), len(b))
    differ = np.flatnonzero(a[:size] != b[:size])
    return int(differ[0]) if len(differ) else size


def kv_is_usable(kv_version: PolicyVersion, now: PolicyVersion, max_kv_staleness: int) -> bool:
    """Return whether keys and values may still be attended to.

    Those of another incarnation never are: how far its history agrees with the present one is not known here.

    Args:
        kv_version: The oldest version that computed any of them.
        now: The version that would attend to them.
        max_kv_staleness: The bound, in versions.
    """
    return kv_version.incarnation == now.incarnation and now.version - kv_version.version <= max_kv_staleness


class KvPool:
    """The two pools.

    Args:
        max_parked: Rows kept for waiting episodes.
        max_shared: Prompts kept for other episodes.
        min_shared_tokens: Shorter common prefixes are not worth a copy.
    """

    def __init__(self, *, max_parked: int, max_shared: int, min_shared_tokens: int) -> None:
        self._max_parked, self._max_shared, self._min_shared = max_parked, max_shared, min_shared_tokens
        self._parked: OrderedDict[str, SavedRow] = OrderedDict()
        self._shared: list[SavedRow] = []
        self._evicted: OrderedDict[str, None] = OrderedDict()
        self.counters = KvCounters()

    @property
    def num_parked(self) -> int:
        """Episodes whose row is kept."""
        return len(self._parked)

    @property
    def keeps_parked(self) -> bool:
        """Whether there is room for parked rows at all."""
        return self._max_parked > 0

    def is_parked(self, episode_id: str) -> bool:
        """Return whether the row of an episode is kept."""
        return episode_id in self._parked

    def park(self, episode_id: str, saved: SavedRow) -> None:
        """Keep the row of an episode; the oldest ones make room."""
        self._parked.pop(episode_id, None)
        self._parked[episode_id] = saved
        self.counters.parked += 1
        while len(self._parked) > self._max_parked:
            gone, _ = self._parked.popitem(last=False)
            self.counters.evicted += 1
            self._evicted[gone] = None
            if len(self._evicted) > 8 * self._max_parked + 1:
                self._evicted.popitem(last=False)

    def forget(self, episode_id: str) -> None:
        """Drop the row of an episode, if there is one."""
        self._parked.pop(episode_id, None)
        self._evicted.pop(episode_id, None)

    def take(
        self, episode_id: str, prompt: npt.NDArray[np.int32], now: PolicyVersion, max_kv_staleness: int
    ) -> tuple[SavedRow, int] | None:
        """Return the best row to begin a prompt with, and how many of its tokens may be used.

        A parked row leaves the pool: its episode goes on in a slot. The last token of the prompt is never
        counted, because decoding begins by feeding it.

        Args:
            episode_id: Whose row to look for; empty for none.
            prompt: [P] int32.
            now: The version that will attend to the row.
            max_kv_staleness: Bound for a parked row, in versions.
        """
        own = self._take_parked(episode_id, now, max_kv_staleness)
        own_length = common_prefix(own.tokens, prompt[:-1]) if own else 0
        shared, shared_length = self._longest_shared(prompt[:-1], now)
        if own is not None and own_length >= max(shared_length, 1):
            self.counters.reused += 1
            return own, own_length
        if shared is not None and shared_length >= self._min_shared:
            self.counters.shared_hits += 1
            return shared, shared_length
        return None

    def share(self, saved: SavedRow) -> None:
        """Offer a computed prompt to other episodes; the one unused for longest makes room."""
        self._shared.append(saved)
        del self._shared[: -self._max_shared or None]

    def wants(self, tokens: npt.NDArray[np.int32], num_new: int) -> bool:
        """Return whether a prompt of which `num_new` tokens had to be computed is worth sharing."""
        return self._max_shared > 0 and len(tokens) >= self._min_shared <= num_new

    def drop_shared(self) -> None:
        """Empty the shared pool; its rows belong to older weights."""
        self._shared.clear()

    def _take_parked(self, episode_id: str, now: PolicyVersion, max_kv_staleness: int) -> SavedRow | None:
        own = self._parked.pop(episode_id, None)
        if own is None:
            if episode_id in self._evicted:
                del self._evicted[episode_id]
                self.counters.recomputed += 1
            return None
        if not kv_is_usable(own.kv_version, now, max_kv_staleness):
            self.counters.too_old += 1
            return None
        return own

    def _longest_shared(
        self, tokens: npt.NDArray[np.int32], now: PolicyVersion
    ) -> tuple[SavedRow | None, int]:
        best, best_length = None, 0
        for saved in self._shared:
            length = common_prefix(saved.tokens, tokens)
            if saved.kv_version == now and length > best_length:
                best, best_length = saved, length
        if best is not None:
            self._shared.remove(best)
            self._shared.append(best)
        return best, best_length
