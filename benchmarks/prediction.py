"""How near the planner's predictions come to runs that were made after them.

    .venv/bin/python benchmarks/prediction.py --json               # all; goes on where it was stopped
    .venv/bin/python benchmarks/prediction.py --json --quick       # one setting, briefly: does it work?
    .venv/bin/python benchmarks/prediction.py --settings wait-heavy-4,limited-4
    .venv/bin/python benchmarks/prediction.py --write docs/explanation/prediction.md

First the parts are measured, on this machine: learner, store and the way of the weights by short runs, with
the others at work beside them; the generator, the learner's compiled shapes and every environment by `forebay
audit`, each alone. Then every setting is simulated and its prediction written down. Only then is it run: real
learner, store and actors; the environment and the generator's device wait. Everything lies in the work
directory, and what is there is not made again; `--again` begins anew.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, TypeVar

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.prediction_study.comparing import (  # noqa: E402
    Measured,
    Prediction,
    compare,
    measured_figures,
    predict,
    predict_given_step,
)
from benchmarks.prediction_study.machinery import (  # noqa: E402
    configure,
    prepare_environment,
    run_product,
)
from benchmarks.prediction_study.page import write_page  # noqa: E402
from benchmarks.prediction_study.profiling import Profiles, now_text  # noqa: E402
from benchmarks.prediction_study.settings import SETTINGS, WORKBENCH, Setting  # noqa: E402

Record = TypeVar("Record", Prediction, Measured)
_QUICK_SECONDS = 15.0
_CALIBRATION_SECONDS = {"full": 30.0, "quick": 12.0}
_WORK = ROOT / "runs" / "prediction"


def main() -> None:
    """Measure, predict, run what is missing, compare, and print one JSON object."""
    options = _options()
    if options.again:
        shutil.rmtree(options.work, ignore_errors=True)
    prepare_environment()
    size = "quick" if options.quick else "full"
    settings = [
        msgspec.structs.replace(one, num_layers=options.layers)
        for one in _chosen(options.settings, quick=options.quick)
    ]
    profiles = Profiles(options.work / "profiles", _CALIBRATION_SECONDS[size], options.layers, _say)
    began_s = time.monotonic()
    profiles.measure(settings)
    predictions = [_predicted(one, profiles, options.work) for one in settings]
    measured = [
        _measured(one, said, profiles, options.work) for one, said in zip(settings, predictions, strict=True)
    ]
    result = _result(settings, predictions, measured, time.monotonic() - began_s)
    if options.write:
        learner = profiles.of(settings[0])[0].learner
        assert learner is not None
        write_page(options.write, settings, predictions, measured, learner, options.layers)
    if options.json:
        print(json.dumps(result))


def _predicted(setting: Setting, profiles: Profiles, work: Path) -> Prediction:
    path = work / "predictions" / f"{setting.name}.json"
    if path.exists():
        return _read(path, Prediction)
    profile, sha256 = profiles.of(setting)
    found = predict(profile, setting, sha256, now_text())
    figures = found.figures
    _say(
        f"predicts {setting.name}: busy {figures.busy:.3f}, goodput {figures.goodput:.3f}, "
        f"{figures.steps_per_h:.0f} steps/h, staleness {figures.staleness:.2f}"
    )
    _write(path, found)
    return found


def _measured(setting: Setting, prediction: Prediction, profiles: Profiles, work: Path) -> Measured:
    path = work / "measured" / f"{setting.name}.json"
    if path.exists():
        return _read(path, Measured)
    _say(f"runs {setting.name}")
    began, load, began_s = now_text(), os.getloadavg()[0], time.monotonic()
    run_path, warmup = work / "runs" / setting.name, prediction.warmup_batches
    summary = run_product(configure(setting, setting.seconds_s, warmup), run_path)
    figures = measured_figures(summary, run_path, warmup)
    found = Measured(
        setting=setting.name,
        began=began,
        batches=summary.steps - warmup,
        wall_s=time.monotonic() - began_s,
        figures=figures,
        given_step=predict_given_step(profiles.of(setting)[0], setting, prediction.figures, figures),
        loss=summary.lost + summary.repeated + summary.compiles_after_warmup,
        load_before=load,
    )
    for verdict in compare(prediction.figures, figures):
        _say(
            f"  {verdict.figure}: said {verdict.predicted:.4g}, found {verdict.measured:.4g}, "
            f"{'holds' if verdict.holds else 'MISSES'}"
        )
    _write(path, found)
    return found


def _result(
    settings: list[Setting], predictions: list[Prediction], measured: list[Measured], wall_s: float
) -> dict[str, Any]:
    rows, holding, given_step = [], 0, 0
    for setting, said, found in zip(settings, predictions, measured, strict=True):
        verdicts = compare(said.figures, found.figures)
        holding += all(verdict.holds for verdict in verdicts)
        given_step += all(verdict.holds for verdict in compare(found.given_step, found.figures))
        rows.append(
            {
                "setting": setting.name,
                "predicted": msgspec.to_builtins(said),
                "measured": msgspec.to_builtins(found),
                "verdicts": {one.figure: msgspec.to_builtins(one) for one in verdicts},
            }
        )
    figures = [verdict for row in rows for verdict in row["verdicts"].values()]
    return {
        "settings": len(rows),
        "settings_that_hold": holding,
        "settings_that_hold_given_step": given_step,
        "figures": len(figures),
        "figures_that_hold": sum(bool(one["holds"]) for one in figures),
        "between_03_and_09": sum(0.3 <= one.figures.busy <= 0.9 for one in measured),
        "wall_s": wall_s,
        "rows": rows,
    }


def _chosen(names: str | None, *, quick: bool) -> list[Setting]:
    if names is None:
        brief = msgspec.structs.replace(SETTINGS[1], seconds_s=_QUICK_SECONDS)
        return [brief] if quick else list(SETTINGS)
    known = {setting.name: setting for setting in (*SETTINGS, *WORKBENCH)}
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        sys.exit(f"no such setting: {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names.split(",")]


def _read(path: Path, kind: type[Record]) -> Record:
    return msgspec.json.decode(path.read_bytes(), type=kind)


def _write(path: Path, found: Prediction | Measured) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    partial.rename(path)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="one setting, briefly; no steady figures")
    parser.add_argument("--settings", help="names, separated by commas; by default all")
    parser.add_argument("--write", type=Path, help="write the page with the table")
    parser.add_argument("--work", type=Path, default=_WORK, help="where everything is kept")
    parser.add_argument(
        "--layers",
        type=int,
        default=6,
        help="blocks of the model: choose so that a step takes about half a second",
    )
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    options = parser.parse_args()
    if options.layers < 1:
        parser.error(f"--layers: a model has at least one block (got {options.layers})")
    return options


if __name__ == "__main__":
    main()
