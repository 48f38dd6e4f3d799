from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from forebay.config import RunConfig, load_config, stored_config
from forebay.config.dump import json_tree, to_toml
from forebay.config.source import ConfigSource, validate
from forebay.envs.settings import EnvironmentSettings
from forebay.launch.settings import LaunchSettings
from forebay.learner.optimizer import OptimizerSettings
from forebay.learner.settings import LearnerSettings

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)
LEAVES = st.booleans() | NUMBERS | TEXT
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)


@st.composite
def configs(draw: st.DrawFn) -> RunConfig:
    name = draw(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True))
    environment = EnvironmentSettings(
        name=name,
        tasks=draw(TEXT),
        kwargs=draw(st.dictionaries(TEXT, VALUES, max_size=3)),
        weight=draw(st.floats(1e-300, 1e300)),
    )
    return RunConfig(
        environment={name: environment},
        optimizer=OptimizerSettings(
            max_gradient_norm=draw(st.sampled_from([0.5, math.inf])),
            learning_rate=draw(st.floats(1e-30, 1e30)),
        ),
        learner=LearnerSettings(max_time_s=draw(st.none() | st.floats(1e-6, 1e9))),
        launch=LaunchSettings(learner_cpus=tuple(draw(st.lists(st.integers(0, 7), max_size=3)))),
    )


@given(configs())
def test_what_config_show_prints_loads_to_an_equal_configuration(config: RunConfig) -> None:
    assert validate(RunConfig, ConfigSource(tree=tomllib.loads(to_toml(config)), origins={})) == config


@given(configs())
def test_what_a_manifest_keeps_loads_to_an_equal_configuration(config: RunConfig) -> None:
    kept = json.loads(json.dumps(json_tree(config), allow_nan=False))
    assert stored_config(kept, Path("manifest.json")) == config


def test_the_defaults_round_trip() -> None:
    config = load_config(None)
    assert validate(RunConfig, ConfigSource(tree=tomllib.loads(to_toml(config)), origins={})) == config
