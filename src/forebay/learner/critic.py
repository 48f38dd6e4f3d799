"""The critic of a learner: what the value head makes of a batch before its first update.

Legend: B rows, T tokens, S slots of all micro-batches of an update, F its trained tokens, N its episodes.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.batching.batch import Batch, MicroBatch
from forebay.batching.credit import Credit
from forebay.errors import RecordError
from forebay.learner.annotations import write_array
from forebay.learner.programs import TrainPrograms
from forebay.models.params import Params
from forebay.objectives.episodes import FloatArray, TokenCredit
from forebay.objectives.gae import generalized_advantages
from forebay.objectives.ratios import LOG_RATIO_LIMIT_NATS
from forebay.objectives.reinforce_plus_plus import normalized
from forebay.objectives.settings import ObjectiveSettings
from forebay.objectives.value_moments import moments_of
from forebay.objectives.vtrace import vtrace
from forebay.trajectory import PolicyVersion

FloatRows = npt.NDArray[np.float32]


class JudgedUpdate(NamedTuple):
    """An update, the values of its trained tokens and what they should have been.

    Attributes:
        update: Its rows hold the value of the state after each position as `values`.
        values: [F] float64.
        credit: Of the F tokens, in the order of `update.credit`.
    """

    update: Batch
    values: FloatArray
    credit: TokenCredit


class Critic:
    """Writes `advantages`, `values` and `value_targets`; an `Annotator`.

    Everything between the forward pass and the update is float64 on the host and a function of the batch and
    the parameters, so that a replay makes the same numbers again.

    Args:
        programs: Compiled for `values`.
        settings: How tokens are judged. For V-trace, `proximal_logprobs` must have been written before: they
            are those of the current policy.
    """

    def __init__(self, programs: TrainPrograms, settings: ObjectiveSettings) -> None:
        self._programs = programs
        self._settings = settings

    def annotate(self, params: Params, updates: tuple[Batch, ...]) -> tuple[Batch, ...]:
        """Judge all updates of a batch by the critic before the first; see `Annotator.annotate`."""
        valued = write_array(
            updates,
            "values",
            lambda rows: np.asarray(self._programs.values(params, self._programs.place(rows))),
        )
        judged = {
            index: judge(update, self._settings) for index, update in enumerate(valued) if not update.empty
        }
        advantages = [one.credit.advantages for one in judged.values()]
        if self._settings.normalize_advantages and advantages:
            together = normalized(
                np.concatenate(advantages),
                ddof=self._settings.advantage_ddof,
                eps=self._settings.advantage_eps,
            )
            advantages = np.split(together, np.cumsum([len(part) for part in advantages])[:-1])
        written = {
            index: _written(one, part) for (index, one), part in zip(judged.items(), advantages, strict=True)
        }
        return tuple(written.get(index, update) for index, update in enumerate(valued))

    def trained(self, params: Params, version: PolicyVersion) -> None:
        """Take note of nothing: the next batch is judged by what it finds."""


def judge(update: Batch, settings: ObjectiveSettings) -> JudgedUpdate:
    """Give the trained tokens of an update their advantages and value targets.

    Args:
        update: Not empty; its rows hold the value of the state after each position as `values`.
        settings: Which estimator, and its constants.

    Raises:
        RecordError: The batch was packed for an objective without a critic.
    """
    credit = update.credit
    if credit is None:
        raise RecordError("no_credit", "the batch does not say where its rewards lie")
    after = _slots(update, "values")
    # A trained token is never the first of its sequence: the slot before it holds the state it came from.
    values = after[credit.slots - 1].astype(np.float64)
    last = after[credit.slots[np.cumsum(credit.lengths) - 1]].astype(np.float64)
    goes_on = credit.cut_off & settings.bootstrap_truncated
    last_values = np.where(goes_on, last, 0.0)
    if settings.advantage == "gae":
        result = generalized_advantages(
            credit.rewards,
            values,
            last_values,
            credit.lengths,
            gamma=settings.gamma,
            gae_lambda=settings.gae_lambda,
        )
    else:
        result = vtrace(
            _log_ratios(update, credit),
            credit.rewards,
            values,
            last_values,
            credit.lengths,
            gamma=settings.gamma,
            trace_lambda=settings.gae_lambda,
            rho_cap=settings.vtrace_rho_cap,
            c_cap=settings.vtrace_c_cap,
        )
    return JudgedUpdate(update, values, result)


def _log_ratios(update: Batch, credit: Credit) -> FloatArray:
    """Return log(current / behavior), clamped; 0 where the sampler lost the logprob."""
    behavior = _slots(update, "behavior_logprobs")[credit.slots].astype(np.float64)
    current = _slots(update, "proximal_logprobs")[credit.slots].astype(np.float64)
    ratios = np.where(np.isfinite(behavior), current - behavior, 0.0)
    clamped: FloatArray = np.clip(ratios, -LOG_RATIO_LIMIT_NATS, LOG_RATIO_LIMIT_NATS)
    return clamped


def _written(judged: JudgedUpdate, advantages: FloatArray) -> Batch:
    """Lay an update's numbers out in its rows."""
    update, credit = judged.update, judged.update.credit
    assert credit is not None
    num_slots = sum(micro.bucket.rows * micro.bucket.length for micro in update.micro_batches)
    columns = {"advantages": advantages, "values": judged.values, "value_targets": judged.credit.targets}
    flat = {name: np.zeros(num_slots, np.float32) for name in columns}
    for name, column in columns.items():
        flat[name][credit.slots] = column
    micro_batches: list[MicroBatch] = []
    start = 0
    for micro in update.micro_batches:
        stop = start + micro.bucket.rows * micro.bucket.length
        arrays = {name: buffer[start:stop].reshape(micro.bucket) for name, buffer in flat.items()}
        micro_batches.append(micro._replace(rows=micro.rows._replace(**arrays)))
        start = stop
    return msgspec.structs.replace(
        update,
        micro_batches=tuple(micro_batches),
        value_moments=moments_of(judged.values, judged.credit.targets),
    )


def _slots(update: Batch, name: str) -> FloatRows:
    """Return one array of all slots of an update."""
    arrays = [np.asarray(getattr(micro.rows, name)).ravel() for micro in update.micro_batches]
    joined: FloatRows = np.concatenate(arrays)
    return joined
