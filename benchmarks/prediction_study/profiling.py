"""The profile of every machine part, measured before any setting is run, and kept with its hash."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.prediction_study.calibration import (
    learner_part,
    store_part,
    tokens_of_calls,
    weights_part,
    with_tokens,
)
from benchmarks.prediction_study.machinery import configure, run_product
from benchmarks.prediction_study.probing import (
    measure_environments,
    measure_generator,
    measure_learner,
)
from benchmarks.prediction_study.settings import Setting, Waits
from forebay.planner.profile import Origin, Profile, read_profile, write_profile

_WARMUP_BATCHES: Final = 4
_PARTS: Final = "parts"
# Runs that no setting is like: they tell what a step takes, by how its batch is packed, while actors and
# generator are at work beside it. The last one is the largest.
_CALIBRATIONS: Final = (
    Setting(
        name="calibration-8", about="", waits=Waits(mean_s=0.15), groups=2, group_size=4, max_staleness=2
    ),
    Setting(
        name="calibration-16", about="", waits=Waits(mean_s=0.15), groups=4, group_size=4, max_staleness=2
    ),
)


class Profiles:
    """Profiles in a directory: one of the machine parts, one of each environment.

    Args:
        directory: Where they lie.
        calibration_s: Training time of each calibrating run.
        num_layers: Blocks of the model, as in every setting.
        say: Told what is being measured.
    """

    def __init__(
        self, directory: Path, calibration_s: float, num_layers: int, say: Callable[[str], None]
    ) -> None:
        self._directory, self._calibration_s, self._say = directory, calibration_s, say
        self._num_layers = num_layers
        directory.mkdir(parents=True, exist_ok=True)

    def measure(self, settings: Sequence[Setting]) -> None:
        """Measure what is not there yet."""
        if not self._path(_PARTS).exists():
            self._measure_parts()
        wanted = {setting.waits.name: setting.waits for setting in settings}
        missing = [waits for name, waits in wanted.items() if not self._path(name).exists()]
        if missing:
            self._say(f"measures {len(missing)} environments")
            for name, found in measure_environments(missing, self._directory / "audits").items():
                write_profile(self._path(name), found)

    def of(self, setting: Setting) -> tuple[Profile, str]:
        """Return the whole profile of a setting, and the hash of the files that it comes from."""
        files = [self._path(_PARTS), self._path(setting.waits.name)]
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        machine, environment = map(read_profile, files)
        whole = msgspec.structs.replace(machine, environments=environment.environments)
        return with_turns(whole), digest

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.json"

    def _measure_parts(self) -> None:
        paths = []
        calibrations = [msgspec.structs.replace(one, num_layers=self._num_layers) for one in _CALIBRATIONS]
        last = calibrations[-1]
        for calibration in calibrations:
            self._say(f"measures learner, store and weights: {calibration.name}")
            paths.append(self._directory / calibration.name)
            run_product(configure(calibration, self._calibration_s, _WARMUP_BATCHES), paths[-1])
        origin = _origin("benchmarks/prediction.py: calibrating runs, actors and generator at work")
        # What the generator does alone is traced in the same place, so its calls are left out by the order.
        tokens = tokens_of_calls(paths)
        self._say("measures the generator, alone")
        generator = measure_generator(paths[-1], last, self._directory / "audits")
        self._say("measures the learner, alone")
        audited = read_profile(measure_learner(generator, last, self._directory / "audits"))
        assert audited.generator is not None and audited.learner is not None
        write_profile(
            self._path(_PARTS),
            Profile(
                generator=with_tokens(audited.generator, tokens),
                learner=learner_part(audited.learner, paths, _WARMUP_BATCHES, origin),
                store=store_part(paths[-1], origin),
                weights=weights_part(paths[-1], origin),
            ),
        )


def with_turns(profile: Profile) -> Profile:
    """Return a profile whose episodes have as many turns as their environments' audits found.

    Here the model has no say in it, and an audit has far more episodes than the few that were played to learn
    what is asked.
    """
    generator = profile.generator
    assert generator is not None
    traffic = {
        name: msgspec.structs.replace(found, turns=profile.environments[name].turns)
        for name, found in generator.traffic.items()
        if name in profile.environments
    }
    return msgspec.structs.replace(profile, generator=msgspec.structs.replace(generator, traffic=traffic))


def now_text() -> str:
    """Return the time, UTC, as profiles write it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _origin(how: str) -> Origin:
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return Origin(machine=machine, measured=now_text(), how=how)
