from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from forebay.chat import small_chat
from forebay.cli.learner_parts import initial_params, make_parts
from forebay.cli.learner_weights import LearnerWeights, newest_step, saved_parameters, saved_weights
from forebay.cli.preflight import check_adapters, check_disk
from forebay.cli.runs import Run
from forebay.config import load_config
from forebay.errors import ConfigError, ModelError
from forebay.learner.checkpoint import Checkpointer
from forebay.learner.checkpoint_manifest import CheckpointCursor
from forebay.learner.run_directory import RunLayout
from forebay.models.hf import to_hf_tensors
from forebay.models.lora_files import save_adapters
from forebay.models.lora_layout import num_adapter_parameters
from forebay.trajectory import PolicyVersion
from forebay.weights.publisher import WeightPublisher
from forebay.weights.reader import WeightReader
from forebay.weights.shard import digest_of
from tests.unit.models import tiny


def run(tmp_path: Path, *overrides: str) -> Run:
    """Return a run of a tiny new model with adapters of rank 2."""
    config = load_config(None, ["model.lora.rank=2", *overrides])
    return Run(RunLayout(tmp_path), "r", config, small_chat(), tiny.CONFIG)


def filled(tree: Any, value: float = 0.25) -> Any:
    return jax.tree.map(lambda leaf: np.full_like(leaf, value), tree)


def test_a_model_that_is_trained_itself_has_no_frozen_part(tmp_path: Path) -> None:
    whole = run(tmp_path)._replace(config=load_config(None))
    weights = LearnerWeights(whole)
    assert weights.frozen == {}
    assert digest_of(weights.tensors(weights.trained)) == digest_of(
        to_hf_tensors(initial_params(whole), tiny.CONFIG)
    )
    assert not (tmp_path / "base.json").exists()


@pytest.mark.parametrize("kind", ["merged", "separate"])
def test_new_adapters_are_published_as_the_model_bit_for_bit(tmp_path: Path, kind: str) -> None:
    made = run(tmp_path, f"weights.adapters={kind}")
    weights = LearnerWeights(made)
    publisher = WeightPublisher(tmp_path / "weights", run_id="r")
    weights.publish(publisher, PolicyVersion(0, 0), weights.trained)
    reader = WeightReader(tmp_path / "weights")
    _, tensors = reader.load()
    assert digest_of(tensors) == digest_of(to_hf_tensors(initial_params(made), tiny.CONFIG))
    assert reader.digest(PolicyVersion(0, 0)) == weights.digest(weights.trained)


def test_both_kinds_of_publication_are_the_same_weights(tmp_path: Path) -> None:
    found = []
    for kind in ("merged", "separate"):
        weights = LearnerWeights(run(tmp_path, f"weights.adapters={kind}"))
        publisher = WeightPublisher(tmp_path / kind, run_id="r")
        weights.publish(publisher, PolicyVersion(0, 1), filled(weights.trained))
        found.append(WeightReader(tmp_path / kind).load()[1])
    assert digest_of(found[0]) == digest_of(found[1])
    base = to_hf_tensors(initial_params(run(tmp_path)), tiny.CONFIG)
    name = "model.layers.1.self_attn.q_proj.weight"
    np.testing.assert_allclose(found[0][name] - base[name], 16 * 2 * 0.25 * 0.25, rtol=1e-6)


def test_another_model_under_the_adapters_is_refused(tmp_path: Path) -> None:
    LearnerWeights(run(tmp_path))
    LearnerWeights(run(tmp_path))
    with pytest.raises(ConfigError, match=r"model under the adapters is not the one .*got run\.seed, hash"):
        LearnerWeights(run(tmp_path, "run.seed=3"))
    (tmp_path / "base.json").write_text("{")
    with pytest.raises(ConfigError, match=r"base\.json is damaged.*Remove it"):
        LearnerWeights(run(tmp_path))


def test_the_saving_is_said_with_its_numbers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    LearnerWeights(run(tmp_path, "compute.compute_dtype=bfloat16"))
    whole, adapters = (
        tiny.CONFIG.num_parameters,
        num_adapter_parameters(tiny.CONFIG, run(tmp_path).config.model.lora),
    )
    assert f"{adapters:,} numbers are trained beside {whole:,} frozen ones" in caplog.text
    assert f"take {(2 * whole + 16 * adapters) / 1e6:,.1f} MB" in caplog.text


def test_a_checkpoint_of_adapters_gives_adapters_and_whole_weights(tmp_path: Path) -> None:
    made = run(tmp_path)
    with pytest.raises(ConfigError, match="no checkpoint in"):
        newest_step(made)
    parts, weights = make_parts(made), LearnerWeights(made)
    state = parts.programs.init_state(filled(weights.trained))
    checkpointer = Checkpointer(made.layout.checkpoints, durability="os")
    checkpointer.save(state, CheckpointCursor(run_id="r", version=PolicyVersion(0, 4)))
    checkpointer.close()
    assert newest_step(made) == 4
    version, adapters = saved_parameters(made, 4)
    assert version == PolicyVersion(0, 4)
    assert all((leaf == 0.25).all() for leaf in jax.tree.leaves(adapters))
    assert digest_of(saved_weights(made, 4)[1]) == digest_of(weights.tensors(adapters))


def test_whole_weights_need_no_adapters_that_training_began_with(tmp_path: Path) -> None:
    new = run(tmp_path)
    save_adapters(tmp_path / "a", filled(LearnerWeights(new).trained), tiny.CONFIG, new.config.model.lora)
    made = run(tmp_path, f"model.lora.path={tmp_path / 'a'}")
    parts, weights = make_parts(made), LearnerWeights(made)
    checkpointer = Checkpointer(made.layout.checkpoints, durability="os")
    trained = filled(weights.trained, 0.5)
    checkpointer.save(
        parts.programs.init_state(trained), CheckpointCursor(run_id="r", version=PolicyVersion(0, 1))
    )
    checkpointer.close()
    shutil.rmtree(tmp_path / "a")
    assert digest_of(saved_weights(made, 1)[1]) == digest_of(weights.tensors(trained))


def test_a_critic_is_trained_whole_beside_adapters(tmp_path: Path) -> None:
    made = run(tmp_path, "objective.preset=ppo-critic", "objective.kl_coef=0.1")
    parts = make_parts(made)
    params = parts.programs.abstract_state.params
    assert set(params) == {"layers", "value_head", "value_bias"}
    assert set(params["layers"]) == {
        f"{name}_{side}" for name in made.config.model.lora.projections for side in "ab"
    }
    for name in ("accumulate", "values", "logprobs"):
        assert parts.programs.lower(name, (2, 32)) is not None
    assert parts.reference is not None
    assert set(parts.reference.abstract) == {"layers"}


def test_adapters_to_begin_with_are_checked_before_anything_starts(tmp_path: Path) -> None:
    weights = LearnerWeights(run(tmp_path))
    lora = run(tmp_path).config.model.lora
    save_adapters(tmp_path / "a", filled(weights.trained), tiny.CONFIG, lora)
    asked = f"model.lora.path={tmp_path / 'a'}"
    check_adapters(run(tmp_path, asked).config, tiny.CONFIG)
    begun = LearnerWeights(run(tmp_path, asked)).trained
    assert all((leaf == 0.25).all() for leaf in jax.tree.leaves(begun))
    with pytest.raises(ConfigError, match=r"Set model\.lora\.rank=2"):
        check_adapters(load_config(None, ["model.lora.rank=3", asked]), tiny.CONFIG)
    with pytest.raises(ModelError, match="adapters not found"):
        check_adapters(run(tmp_path, f"model.lora.path={tmp_path}").config, tiny.CONFIG)


def test_the_disk_needs_room_for_adapters_only(tmp_path: Path) -> None:
    """Of a model of 10**15 numbers no disk has room for a checkpoint; for its adapters there is."""

    class Huge:
        num_parameters = 10**15
        num_layers = 2

        def __getattr__(self, name: str) -> Any:
            return getattr(tiny.CONFIG, name)

    with pytest.raises(ConfigError, match="checkpoints x 12000000000000000 "):
        check_disk(load_config(None), tmp_path, Huge())
    with pytest.raises(ConfigError, match=r"checkpoints x [1-9]\d{3,5} \+ 4 versions x 4000000000000000 "):
        check_disk(run(tmp_path).config, tmp_path, Huge())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("objective.kl_coef=0.1", "reference.source=elsewhere"), "made of the same frozen model"),
        (
            ("objective.kl_coef=0.1", "reference.update_every=1", "reference.update_share=0.5"),
            "no average of policies",
        ),
    ],
)
def test_combinations_that_adapters_cannot_have_are_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, ["model.lora.rank=2", *overrides])


def test_adapters_are_not_published_apart_where_there_are_none() -> None:
    with pytest.raises(
        ConfigError, match=r'adapters="separate" without model\.lora\.rank.*Set model\.lora\.rank'
    ):
        load_config(None, ["weights.adapters=separate"])
