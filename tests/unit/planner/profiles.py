"""Profiles whose runs can be computed by hand."""

from __future__ import annotations

from forebay.planner.distribution import Distribution, constant
from forebay.planner.profile import (
    EnvironmentProfile,
    GeneratorLevel,
    GeneratorProfile,
    LearnerLevel,
    LearnerProfile,
    Origin,
    Profile,
    StoreProfile,
    WeightsProfile,
)

ORIGIN = Origin(machine="a test", measured="2026-01-01T00:00:00Z", how="by hand")
SECOND = constant(1.0)


def environment(step_s: Distribution = SECOND, turns: float = 3.0, weight: float = 1.0) -> EnvironmentProfile:
    """Return an environment whose reset takes no time."""
    return EnvironmentProfile(
        origin=ORIGIN,
        reset_s=constant(0.0),
        step_s=step_s,
        turns=constant(turns),
        num_episodes=10,
        concurrency=1,
        tokens_per_turn=constant(10.0),
        weight=weight,
    )


def profile(
    *,
    step_s: Distribution = SECOND,
    turns: float = 3.0,
    call_s: float = 0.25,
    slots: int = 1000,
    train_s: float = 2.0,
    overhead_s: float = 0.0,
    trajectories: int = 8,
    weights_s: float | None = None,
    store: bool = False,
) -> Profile:
    """Return a profile of constant times but for the environment's steps."""
    return Profile(
        environments={"tools": environment(step_s, turns)},
        generator=GeneratorProfile(
            origin=ORIGIN,
            slots=slots,
            levels=(GeneratorLevel(requests=1, tokens_per_s=40.0, call_s=constant(call_s)),),
        ),
        learner=LearnerProfile(
            origin=ORIGIN,
            levels=(
                LearnerLevel(trajectories=trajectories, tokens=trajectories * 30, step_s=constant(train_s)),
            ),
            overhead_s=constant(overhead_s),
        ),
        store=StoreProfile(
            origin=ORIGIN,
            engine="memory",
            puts_per_s=100.0,
            put_s=constant(0.0),
            take_s=constant(0.0),
            trajectory_bytes=constant(100.0),
        )
        if store
        else None,
        weights=WeightsProfile(origin=ORIGIN, first_token_s=constant(weights_s), num_bytes=1)
        if weights_s is not None
        else None,
    )
