"""Plans and outcomes as text, and as configuration to paste."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from forebay.planner.plan import Plan
from forebay.planner.simulation import Outcome

_SHADES: Final = " .:-=+*#%@"


def plan_text(plan: Plan, wanted_busy: float) -> str:
    """Return a plan as a page.

    Args:
        plan: The plan.
        wanted_busy: What was asked for.
    """
    processes = _count(plan.actor_processes, "actor process")
    megabytes = f"{plan.buffer_bytes / 1e6:.3g} MB"
    compared = f"(wanted {wanted_busy:.1%}, synchronous {plan.sync_busy:.1%})"
    lines = [
        plan.reason,
        "",
        f"  episodes in flight   {plan.episodes_in_flight}, in {processes}",
        f"  generators           {plan.generators}",
        f"  staleness            max_staleness {plan.max_staleness}, credit {plan.credit}, {plan.on_stale}",
        f"  batch                {plan.groups} groups of {plan.group_size}",
        f"  store                at least {plan.capacity_groups} groups, {megabytes} waiting",
        "",
        f"  busy                 {plan.busy:.1%} {compared}",
        f"  goodput              {plan.goodput:.1%} of the bare step on full rows",
        f"  steps                {plan.steps_per_s:.3g} per second, {plan.steps_per_s * 3600:.0f} per hour",
        f"  staleness, mean      {plan.staleness_mean:.2f}",
        f"  discarded, masked    {plan.discarded:.1%} of trajectories, {plan.masked_share:.1%} of tokens",
    ]
    if plan.cost_per_hour is not None and plan.cost_per_1000_steps is not None:
        lines.append(
            f"  cost                 {plan.cost_per_hour:.2f} per hour, "
            f"{plan.cost_per_1000_steps:.2f} per 1000 steps"
        )
    return "\n".join(
        [
            *lines,
            "",
            *picture(plan),
            "",
            "Bounds:",
            *(f"  {line}" for line in plan.arithmetic),
            "",
            toml(plan),
        ]
    )


def picture(plan: Plan) -> list[str]:
    """Return busy against fleet size and staleness as lines of text, darker where busier."""
    rows = sorted({cell.max_staleness for cell in plan.cells}, reverse=True)
    columns = sorted({cell.episodes_in_flight for cell in plan.cells})
    busy = {(cell.max_staleness, cell.episodes_in_flight): cell.busy for cell in plan.cells}
    lines = ["Busy by max_staleness (down) and episodes in flight (across):"]
    for row in rows:
        shown = [f"{busy[row, column]:6.1%} {_shade(busy[row, column]) * 2}" for column in columns]
        lines.append(f"{row:8d} |" + " ".join(f"{text:>10}" for text in shown))
    return [*lines, " " * 10 + " ".join(f"{column:10d}" for column in columns)]


def toml(plan: Plan, base: str | None = None) -> str:
    """Return the settings of a plan as TOML.

    Args:
        plan: The plan.
        base: The configuration that they are to extend.
    """
    places = -(-plan.episodes_in_flight // plan.actor_processes)
    head = [f"extends = {msgspec.json.encode(base).decode()}", ""] if base else []
    return "\n".join(
        [
            *head,
            f"# forebay plan: busy {plan.busy:.1%}, goodput {plan.goodput:.1%}, mean staleness "
            f"{plan.staleness_mean:.2f}, with {_count(plan.generators, 'generator')}",
            "[staleness]",
            f"max_staleness = {plan.max_staleness}",
            f"credit = {plan.credit}",
            f'on_stale = "{plan.on_stale}"',
            "",
            "[batching]",
            f"groups = {plan.groups}",
            f"group_size = {plan.group_size}",
            "",
            "[actors]",
            f"processes = {plan.actor_processes}",
            f"episodes_per_process = {places}",
            "",
            "[store]",
            f"capacity_groups = {plan.capacity_groups}",
        ]
    )


def outcome_text(outcome: Outcome) -> str:
    """Return a simulated run as a page."""
    lines = [
        f"busy {outcome.busy:.1%}, goodput {outcome.goodput:.1%}, {outcome.steps_per_s:.3g} steps/s "
        f"({outcome.steps_per_s * 3600:.0f} per hour), {outcome.fresh_tokens_per_s:.4g} fresh tokens/s",
        f"staleness: mean {outcome.staleness_mean:.2f}, oldest {outcome.staleness_max}",
        f"discarded {outcome.discarded} trajectories ({outcome.discarded_share:.1%}), masked "
        f"{outcome.masked_tokens} tokens ({outcome.masked_share:.1%}), {outcome.timed_out_share:.1%} of the "
        f"episodes timed out",
        f"buffer: {outcome.buffer_trajectories:.1f} trajectories, {outcome.buffer_bytes / 1e6:.3g} MB "
        f"(at most {outcome.buffer_bytes_max / 1e6:.3g} MB)",
        "without a batch: " + _shares(outcome.waits),
        "an episode: " + ", ".join(f"{name} {value:.3g} s" for name, value in outcome.phases_s.items()),
        f"Little's law: {outcome.episodes_in_flight:.1f} in flight = {outcome.episodes_per_s:.3g}/s x "
        f"{outcome.episode_s:.3g} s, within {abs(outcome.little - 1.0):.1%}",
        "tokens by staleness:",
        *(
            f"{age:6d} {share:6.1%} {'#' * round(60 * share)}"
            for age, share in enumerate(outcome.staleness_histogram)
            if share >= 0.0005
        ),
    ]
    return "\n".join(lines)


def _shares(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.1%}" for name, share in shares.items())


def _shade(fraction: float) -> str:
    return _SHADES[min(len(_SHADES) - 1, int(fraction * len(_SHADES)))]


def _count(number: int, what: str) -> str:
    plural = what + ("es" if what.endswith("s") else "s")
    return f"{number} {what if number == 1 else plural}"
