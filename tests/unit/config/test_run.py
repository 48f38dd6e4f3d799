from __future__ import annotations

from pathlib import Path

import pytest

from forebay.config import load_config, stored_config
from forebay.config.dump import json_tree
from forebay.errors import ConfigError


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides)
    assert caught.value.exit_code == 2
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("environment.calculator.max_trns=3", "'environment.calculator.max_turns'"),
        ("environment.calculator.latency.mean=3", "'environment.calculator.latency.mean_s'"),
        (
            "learner.context=64",
            "unknown key 'context' in [learner]. Did you mean 'mesh.context' or 'generator.context'?",
        ),
        ("environment.max_turns=3", "[environment.NAME]"),
        ('learner.steps="12"', "learner.steps: Input should be a valid integer, got '12'"),
        ("learner.steps=true", "learner.steps: Input should be a valid integer, got True"),
        ("run.name=../elsewhere", "run.name must start with a letter or digit"),
        ("environment.a/b.max_turns=3", "the name of an environment must start with a letter or digit"),
        ("batching.minibatches=3", "minibatches in [1, 2, 4, 8]"),
        ("store.engine=memory", 'Set store.engine="lmdb"'),
        ("generator.context=1024", "generator.context=1024, limit batching.max_length=512"),
        ("environment.calculator.kwargs={deep=[1, inf]}", "no inf and no nan"),
        ("launch=3", "launch is a section: write [launch], got 3"),
    ],
)
def test_c68_bad_values_name_key_value_and_remedy(override: str, named: str) -> None:
    assert named in refusal(override)


def test_c14_groups_of_one_are_refused_where_members_are_compared() -> None:
    assert "one has no baseline (got batching.group_size=1, limit 2)" in refusal("batching.group_size=1")
    assert "(got batching.min_group_size=1, limit 2)" in refusal("batching.min_group_size=1")


@pytest.mark.parametrize("preset", ["ppo-critic", "impala", "reinforce++"])
def test_an_episode_is_enough_where_nobody_is_compared(preset: str) -> None:
    config = load_config(None, [f"objective.preset={preset}", "batching.group_size=1"])
    assert (config.division.size, config.division.min_size) == (1, 1)


def test_settings_of_a_critic_need_one() -> None:
    assert (
        'value.clip = 0.2 is unused: there is no critic (got objective.advantage = "group_mean"'
        in refusal("value.clip=0.2")
    )
    assert load_config(None, ["objective.advantage=gae", "value.clip=0.2"]).value.clip == 0.2


def test_c76_an_open_address_needs_a_token() -> None:
    assert "generator.token_env" in refusal("generator.host=0.0.0.0")
    assert (
        load_config(None, ["generator.host=0.0.0.0", "generator.token_env=TOKEN"]).generator.host == "0.0.0.0"
    )
    assert load_config(None, ["generator.host=::1"]).generator.host == "::1"


def test_a_capacity_below_the_checkpoint_interval_shows_the_arithmetic() -> None:
    # 512 tokens x 8 bytes and a header of 64 KiB make 69,632 bytes; 4 of them a group.
    message = refusal("store.retained_capacity_bytes=1000000")
    assert "got store.retained_capacity_bytes=1000000" in message
    assert "(2 x 20 + 1) batches x 8 groups x 278528 bytes = 91357184" in message
    assert "Checkpoint more often" in message


def test_a_manifest_of_another_version_is_refused_with_its_file() -> None:
    tree = json_tree(load_config(None)) | {"compression": {"level": 3}}
    with pytest.raises(ConfigError, match=r"kept in run/manifest\.json: unknown key 'compression'") as caught:
        stored_config(tree, Path("run/manifest.json"))
    assert "version of forebay that made the run" in str(caught.value)
