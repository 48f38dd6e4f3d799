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

from benchmarks.prediction_study.calibration import learner_level, learner_part, store_part, weights_part
from benchmarks.prediction_study.machinery import configure, run_product
from benchmarks.prediction_study.probing import measure_environments, measure_generator
from benchmarks.prediction_study.settings import Setting, Waits
from forebay.planner.profile import Origin, Profile, read_profile, write_profile

_WARMUP_BATCHES: Final = 4
_PARTS: Final = "parts"
# Runs that no setting is like: they tell what a batch takes while actors and generator are as busy as in the
# settings, on the average, which share what the cores share.
_CALIBRATIONS: Final = (
    Setting(
        name="calibration-8", about="", waits=Waits(mean_s=0.15), groups=2, group_size=4, max_staleness=1
    ),
    Setting(
        name="calibration-16", about="", waits=Waits(mean_s=0.15), groups=4, group_size=4, max_staleness=1
    ),
)


class Profiles:
    """Profiles in a directory: one of the machine parts, one of each environment.

    Args:
        directory: Where they lie.
        calibration_s: Training time of each calibrating run.
        say: Told what is being measured.
    """

    def __init__(self, directory: Path, calibration_s: float, say: Callable[[str], None]) -> None:
        self._directory, self._calibration_s, self._say = directory, calibration_s, say
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
        return msgspec.structs.replace(machine, environments=environment.environments), digest

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.json"

    def _measure_parts(self) -> None:
        levels, summaries, path = [], [], self._directory
        for calibration in _CALIBRATIONS:
            self._say(f"measures learner, store and weights: {calibration.name}")
            path = self._directory / calibration.name
            config = configure(calibration, self._calibration_s, _WARMUP_BATCHES)
            summaries.append(run_product(config, path))
            levels.append(learner_level(path, _WARMUP_BATCHES))
        origin = _origin("benchmarks/prediction.py: a calibrating run, actors and generator at work")
        self._say("measures the generator")
        write_profile(
            self._path(_PARTS),
            Profile(
                generator=measure_generator(path, _origin("benchmarks/prediction.py: closed loop")),
                learner=learner_part(path, summaries, levels, _WARMUP_BATCHES, origin),
                store=store_part(path, origin),
                weights=weights_part(path, origin),
            ),
        )


def now_text() -> str:
    """Return the time, UTC, as profiles write it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _origin(how: str) -> Origin:
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return Origin(machine=machine, measured=now_text(), how=how)
