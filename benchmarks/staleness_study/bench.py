"""Runs cells one after the other; what is compiled is compiled once for all of them."""

from __future__ import annotations

import functools
import time

from benchmarks.staleness_study.cells import OBJECTIVES, OPTIMIZERS, TIMINGS, Cell, fingerprint
from benchmarks.staleness_study.controlled import run_controlled
from benchmarks.staleness_study.generation import Engine
from benchmarks.staleness_study.on_the_clock import run_on_the_clock
from benchmarks.staleness_study.problems import load_problem
from benchmarks.staleness_study.results import Result, summarize_run
from benchmarks.staleness_study.training import Recipe, Trainer
from forebay.objectives.settings import ObjectiveSettings


class Bench:
    """Runs cells."""

    def __init__(self) -> None:
        # Of this bench, not of the class: what is compiled goes when it goes.
        self._engine = functools.cache(lambda problem: Engine(load_problem(problem)))
        self._trainer = functools.cache(_trainer)

    @staticmethod
    def name_of(cell: Cell) -> str:
        """Return the fingerprint of a cell's result."""
        return fingerprint(cell, load_problem(cell.problem).fingerprint, TIMINGS[cell.problem])

    def run(self, cell: Cell, commit: str) -> Result:
        """Run one cell.

        Args:
            cell: What to run.
            commit: Revision of the code, to be kept with the result.
        """
        problem, engine = load_problem(cell.problem), self._engine(cell.problem)
        trainer = self._trainer(cell.problem, cell.objective, cell.rate)
        began_s = time.process_time()
        if cell.regime in ("controlled", "spread"):
            outcome = run_controlled(cell, problem, engine, trainer)
        else:
            outcome = run_on_the_clock(cell, problem, engine, trainer, TIMINGS[cell.problem])
        return summarize_run(cell, self.name_of(cell), outcome, time.process_time() - began_s, commit)


def objective_of(problem: str, objective: str) -> ObjectiveSettings:
    """Return an objective as it is used for a problem: with the problem's entropy bonus."""
    bonus = load_problem(problem).config.objective.entropy_coef
    return ObjectiveSettings(**{"entropy_coef": bonus, **OBJECTIVES[objective]})


def _trainer(problem: str, objective: str, rate: float) -> Trainer:
    found = load_problem(problem)
    recipe = Recipe(
        objective_of(problem, objective),
        rate * found.config.optimizer.learning_rate,
        {"drift_price": 0.0} | OPTIMIZERS.get(objective, {}),
    )
    return Trainer(found, recipe)
