"""A run with a critic that was killed makes the same weights and the same critic, bit for bit."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from forebay.learner.annotations import ProximalLogprobs
from forebay.learner.checkpoint import Checkpointer
from forebay.learner.checkpoint_manifest import CheckpointCursor
from forebay.learner.critic import Critic
from forebay.learner.loop import Learner
from forebay.learner.replay import replay
from forebay.objectives import ObjectiveSettings, build_batch_advantages
from forebay.store.rules import RuleStore
from forebay.trajectory import PolicyVersion
from tests.numerics import training
from tests.unit.learner import small_run
from tests.unit.store.builders import FIRST

STEPS, KILLED_AT = 5, 4
OBJECTIVE = ObjectiveSettings(preset="impala", gae_lambda=0.95, normalize_advantages=True)
pack = functools.partial(small_run.pack, advantage=build_batch_advantages(OBJECTIVE))


def make_learner(version: PolicyVersion = FIRST, **options) -> Learner:
    built = small_run.programs(OBJECTIVE)
    annotators = [ProximalLogprobs(built), Critic(built, OBJECTIVE)]
    return small_run.make_learner(version, built=built, annotators=annotators, **options)


def run(learner: Learner, store: RuleStore, last: int) -> None:
    version = learner.version
    source = small_run.ScriptedSource(store, version.incarnation, version.version, last, pack)
    learner.run(source, last, lambda: False)


def publishing(store: RuleStore):
    return lambda version, params: store.publish(version, incarnation=version.incarnation)


def test_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    whole_store = small_run.open_at()
    whole_store.rewind(0)
    ledger = small_run.Ledger()
    whole = make_learner(publish=publishing(whole_store), account=ledger)
    run(whole, whole_store, STEPS)

    store = small_run.open_at(tmp_path / "store")
    store.rewind(0)
    checkpointer = Checkpointer(tmp_path / "checkpoints", durability="os")

    def save(state, version) -> None:
        if version.version < KILLED_AT:
            checkpointer.save(state, CheckpointCursor(run_id="run", version=version))

    killed = make_learner(publish=publishing(store), save=save, checkpoint_every=2)
    run(killed, store, KILLED_AT)
    store.close()

    store = small_run.open_at(tmp_path / "store")
    restored = checkpointer.restore_newest(small_run.programs(OBJECTIVE).abstract_state)
    assert restored is not None
    assert restored.cursor.version.version == 2
    rewound = store.rewind(2)
    resumed = make_learner(
        PolicyVersion(rewound.incarnation, 2),
        state=restored.state,
        publish=publishing(store),
    )
    replayed = replay(
        store,
        rewound.journal,
        rewound.incarnation,
        pack,
        resumed.train,
        lambda made: [],
        lambda: small_run.digest(resumed.state),
    )
    assert replayed == KILLED_AT - 2
    assert training.digest(resumed.state) == training.digest(killed.state)
    run(resumed, store, STEPS)
    assert training.digest(resumed.state.params) == training.digest(whole.state.params)
    assert np.abs(np.asarray(whole.state.params["value_head"])).max() > 0
    judged = [batch.updates[0].value_moments for batch in ledger.batches]
    assert all(moments is not None and moments.tokens > 0 for moments in judged)
    store.close()
