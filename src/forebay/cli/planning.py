"""What `forebay plan` and `forebay simulate` read alike: profiles, settings, configurations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from forebay.errors import ConfigError
from forebay.planner.plan import make_scenario
from forebay.planner.profile import Profile, merge_profiles, read_profile
from forebay.planner.scenario import Scenario


def read_profiles(paths: Sequence[Path]) -> Profile:
    """Return what several files hold together; of a part in more than one, the last counts.

    Raises:
        ConfigError: A file is missing or no profile.
    """
    return merge_profiles([read_profile(path) for path in paths])


def read_scenario(config: Path | None, settings: Iterable[str]) -> Scenario:
    """Return the scenario of a configuration, with `key=value` settings on top.

    Raises:
        ConfigError: The configuration is not valid, or a setting is malformed, unknown or impossible.
    """
    values = {} if config is None else _of_config(config)
    for setting in settings:
        key, sign, raw = setting.partition("=")
        if not sign or not key.strip():
            raise ConfigError(f"{setting!r} is not of the form key=value")
        values[key.strip()] = _value(raw.strip())
    return make_scenario(values)


def _value(raw: str) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return raw


def _of_config(path: Path) -> dict[str, Any]:
    # Only who names a configuration pays for the imports of all components.
    from forebay.config import load_config

    config = load_config(path)
    environments = config.environment.values()
    actors, batching, staleness = config.actors, config.batching, config.staleness
    return {
        "groups": batching.groups,
        "group_size": batching.group_size,
        "min_group_size": batching.min_group_size,
        "minibatches": batching.minibatches,
        "epochs": batching.epochs,
        "prefetch": batching.prefetch,
        "publish_every": config.learner.publish_every,
        "max_staleness": staleness.max_staleness,
        "on_stale": staleness.on_stale,
        "credit": staleness.credit,
        "episodes_in_flight": None if actors.controlled else actors.processes * actors.most_episodes,
        "poll_s": actors.poll_s,
        "poll_max_s": actors.poll_max_s,
        "version_period_s": actors.version_period_s,
        "slots": config.generator.slots,
        "follow_ups_first": config.generator.parked_episodes > 0 and not config.generator.vllm,
        "episode_timeout_s": max(one.episode_timeout_s for one in environments),
        "step_timeout_s": max(one.step_timeout_s for one in environments),
    }
