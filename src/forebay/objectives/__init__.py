"""Objectives: what a batch's loss is, as pure functions chosen by configuration.

The names here never import JAX, so processes that only read settings, compute advantages or pack batches
stay light. The compiled side starts at `forebay.objectives.build.build_objective`.

To add an idea: a surrogate, a rejection or a reduction is one short file with one pure function (see
`surrogate.py` for what it is given and returns), one row in `build.py`, one literal in `settings.py`.
"""

from __future__ import annotations

from forebay.objectives.advantages import AdvantageEstimator as AdvantageEstimator
from forebay.objectives.advantages import BatchAdvantages as BatchAdvantages
from forebay.objectives.advantages import GroupAdvantages as GroupAdvantages
from forebay.objectives.advantages import Outcome as Outcome
from forebay.objectives.advantages import by_group as by_group
from forebay.objectives.denominators import batch_denominator as batch_denominator
from forebay.objectives.denominators import count_fresh as count_fresh
from forebay.objectives.inputs import Diagnostics as Diagnostics
from forebay.objectives.inputs import LossInputs as LossInputs
from forebay.objectives.inputs import LossSums as LossSums
from forebay.objectives.inputs import summarize as summarize
from forebay.objectives.settings import ObjectiveSettings as ObjectiveSettings
from forebay.objectives.settings import build_advantage as build_advantage
from forebay.objectives.settings import build_batch_advantages as build_batch_advantages
