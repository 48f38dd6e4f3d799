"""What happened to the episodes of a run, by kind of task: how many, how long, how hard, what was trained."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from forebay.batching.loss_mask import Member, classify_tokens
from forebay.batching.settings import BatchingSettings
from forebay.learner.feed import JournaledBatch
from forebay.staleness import StalenessSettings
from forebay.trajectory import PolicyVersion


class Episode(NamedTuple):
    """An episode as a distribution sees it.

    Attributes:
        kind: Its kind of task.
        tokens: Tokens sampled, or, of a trained one, those of them that are trained.
        difficulty: Of its task.
    """

    kind: str
    tokens: int
    difficulty: float


class Told:
    """The episodes of a run.

    Attributes:
        started: Every episode that an actor began.
        accepted: Those that the store acknowledged.
        trained: Those of which a token was trained.
        discarded: Episodes in a batch of which no token is fresh, by kind.
        fresh: Trained tokens, by kind and turn.
        busy: Share of time that the learner computed.
    """

    def __init__(self) -> None:
        self.started: list[Episode] = []
        self.accepted: list[Episode] = []
        self.trained: list[Episode] = []
        self.discarded: Counter[str] = Counter()
        self.fresh: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.masked_tokens = 0
        self.busy = 0.0

    def train(self, batch: JournaledBatch, staleness: StalenessSettings, settings: BatchingSettings) -> None:
        """Account for what a batch trains, by the product's own rule."""
        now = PolicyVersion(0, batch.entry.now.version)
        for group in batch.groups:
            kind, difficulty = str(group.spec.task.payload["kind"]), group.spec.task.payload["difficulty"]
            members = [Member(trajectory, 0.0, True) for trajectory in group.trajectories]
            tokens = classify_tokens(members, now, (), staleness, settings)
            by_member = np.bincount(tokens.sequences[tokens.fresh], minlength=len(members))
            for turn, count in Counter(tokens.turns[tokens.fresh].tolist()).items():
                self.fresh[kind][turn] += count
            self.masked_tokens += int(np.count_nonzero(~tokens.fresh))
            for count in by_member.tolist():
                if count:
                    self.trained.append(Episode(kind, count, difficulty))
                else:
                    self.discarded[kind] += 1

    def fresh_by_turn(self, kind: str, turns: int, turn_tokens: int) -> list[float]:
        """Return the share of each turn that is trained, of the episodes of a kind that were accepted."""
        accepted = sum(episode.kind == kind for episode in self.accepted)
        return [self.fresh[kind][turn] / max(accepted * turn_tokens, 1) for turn in range(turns)]


def share_of(name: str, per_turn: dict[str, float]) -> float:
    """Return the share of a kind in trained tokens, each kind's divided by its number of turns."""
    return per_turn[name] / max(sum(per_turn.values()), 1e-9)


def distribution(episodes: Sequence[Episode], slow: str) -> dict[str, Any]:
    """Return how many episodes there are, how long and how hard they are, and how many are of a slow kind."""
    if not episodes:
        return {"episodes": 0, "tokens": None, "difficulty": None, "slow_share": None}
    return {
        "episodes": len(episodes),
        "tokens": sum(episode.tokens for episode in episodes) / len(episodes),
        "difficulty": sum(episode.difficulty for episode in episodes) / len(episodes),
        "slow_share": sum(episode.kind == slow for episode in episodes) / len(episodes),
    }
