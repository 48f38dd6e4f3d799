"""The records of `profile.json`: what was measured of each part of a run, where, when and how often.

What is optional was not measured by every version, or cannot be measured on every machine.
"""

from __future__ import annotations

import msgspec

from forebay.planner.distribution import Distribution

Interval = tuple[float, float]


class Origin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where and when a part was measured.

    Args:
        machine: Host, processor, device: what a reader needs to know whether it applies.
        measured: UTC, as `2026-01-31T12:00:00Z`.
        how: The command, or what else gave the figures.
        duration_s: How long measuring took; 0 if unknown.
    """

    machine: str
    measured: str
    how: str
    duration_s: float = 0.0


class EnvironmentLevel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an environment did at one concurrency.

    Args:
        concurrency: Episodes alive at once.
        steps_per_s: Steps answered per second, all episodes together.
        step_s: Time of a step.
        num_errors: Resets and steps that failed.
        num_timeouts: Resets and steps that took too long.
        steps_per_s_interval: 95 % interval of `steps_per_s`.
    """

    concurrency: int
    steps_per_s: float
    step_s: Distribution
    num_errors: int = 0
    num_timeouts: int = 0
    steps_per_s_interval: Interval | None = None


class EnvironmentProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an environment takes, at a concurrency that does not yet slow it down.

    Args:
        origin: Where and when.
        reset_s: Time to pose a task.
        step_s: Time of a step that does not end the episode.
        turns: Model calls of an episode.
        num_episodes: Episodes measured.
        concurrency: Episodes alive at once meanwhile.
        final_step_s: Time of the step that ends the episode; None if it takes as long as any.
        tokens_per_turn: Tokens that the model writes in a turn; None if no model took part.
        num_errors: Episodes that failed.
        num_timeouts: Episodes that a limit of time ended.
        levels: The same at rising concurrency.
        knee: Concurrency beyond which more only adds latency; None if it was not reached.
        weight: Share of the tasks, relative to other environments.
    """

    origin: Origin
    reset_s: Distribution
    step_s: Distribution
    turns: Distribution
    num_episodes: int
    concurrency: int
    final_step_s: Distribution | None = None
    tokens_per_turn: Distribution | None = None
    num_errors: int = 0
    num_timeouts: int = 0
    levels: tuple[EnvironmentLevel, ...] = ()
    knee: int | None = None
    weight: float = 1.0

    @property
    def error_rate(self) -> float:
        """Share of the episodes that failed."""
        return self.num_errors / self.num_episodes


class Traffic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What episodes of an environment ask a generator, as the run's own model played them.

    Args:
        num_episodes: Episodes played.
        turns: Model calls of an episode.
        prompt_tokens: Tokens of a call's prompt.
        computed_tokens: Of these, those that were not in the generator's cache.
        sampled_tokens: Tokens sampled by a call.
        episode_tokens: Tokens of a whole trajectory, prompts included.
        action_tokens: Tokens that an episode samples.
        trajectory_bytes: Bytes of an encoded trajectory.
        first_prompt_tokens: Tokens of an episode's first prompt; None if they were not told apart.
        observed_tokens: Tokens that come between two calls of an episode: what the environment says, and the
            template around it; None likewise.
    """

    num_episodes: int
    turns: Distribution
    prompt_tokens: Distribution
    computed_tokens: Distribution
    sampled_tokens: Distribution
    episode_tokens: Distribution
    action_tokens: Distribution
    trajectory_bytes: Distribution
    first_prompt_tokens: Distribution | None = None
    observed_tokens: Distribution | None = None


class GeneratorLevel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one generator did at one load.

    Args:
        requests: Requests under way at once; the next one follows each answer.
        tokens_per_s: Tokens sampled per second, all requests together.
        call_s: Time of a model call without the wait for a slot, `wait_s`: in the slot, and on its way there
            and back.
        prefill_tokens_per_s: Prompt tokens read per second when nothing is sampled beside; None if not
            measured.
        tokens_per_s_interval: 95 % interval of `tokens_per_s`.
        wait_s: Wait for a slot, before `call_s`: where slots are free, for the end of the decoding block that
            runs, which a request that follows an answer has just missed. None if the generator does not tell.
        prefill_s: Part of `call_s`: from the slot to the first sampled token.
        decode_s: Part of `call_s`: from there to the last one. The two are the time in the slot.
        num_errors: Calls that failed.
    """

    requests: int
    tokens_per_s: float
    call_s: Distribution
    prefill_tokens_per_s: float | None = None
    tokens_per_s_interval: Interval | None = None
    wait_s: Distribution | None = None
    prefill_s: Distribution | None = None
    decode_s: Distribution | None = None
    num_errors: int = 0


class GeneratorProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one generator does by load.

    Args:
        origin: Where and when.
        slots: Requests that run at once; more wait.
        levels: By ascending load.
        knee: Least load within a tenth of the most tokens per second; None if more load still gave more.
        traffic: What was asked, by environment; empty where prompts were made up.
    """

    origin: Origin
    slots: int
    levels: tuple[GeneratorLevel, ...]
    knee: int | None = None
    traffic: dict[str, Traffic] = {}


class LearnerLevel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a step over one amount of work takes.

    Args:
        trajectories: Trajectories of the batch.
        tokens: Trained tokens of the batch.
        step_s: Time inside the compiled programs.
    """

    trajectories: int
    tokens: int
    step_s: Distribution


class PackedLevel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the steps of a run took that computed one number of slots.

    Args:
        slots: Tokens of the batch's micro-batches, padding included.
        step_s: Time inside the compiled programs.
    """

    slots: int
    step_s: Distribution


class LearnerBucket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one compiled shape takes.

    Args:
        rows: Rows of the micro-batch.
        length: Tokens of a row.
        call_s: Time of the gradient program, on rows without padding.
    """

    rows: int
    length: int
    call_s: Distribution


class LearnerProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the learner takes for a batch.

    Args:
        origin: Where and when.
        levels: By ascending number of trajectories.
        overhead_s: Time from the end of a step to the start of the next one when a batch is there: copying
            weights, publishing, recording.
        full_tokens_per_s: Trained tokens per second of the bare step on full rows: what goodput is a fraction
            of. None takes that of the step itself.
        buckets: By compiled shape.
        apply_s: Time of the optimizer's program.
        compile_s: Time to compile all programs; 0 if unknown.
        packed: Steps of a run, by the slots that they computed, ascending: what a step takes beside the rest
            of the run. Empty if it was not measured there: then steps are sums of `buckets` and `apply_s`.
        alone: Whether nothing else of the run was at work meanwhile; None if it is not known.
    """

    origin: Origin
    levels: tuple[LearnerLevel, ...]
    overhead_s: Distribution
    full_tokens_per_s: float | None = None
    buckets: tuple[LearnerBucket, ...] = ()
    apply_s: Distribution | None = None
    compile_s: float = 0.0
    packed: tuple[PackedLevel, ...] = ()
    alone: bool | None = None


class StoreProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the store takes.

    Args:
        origin: Where and when.
        engine: Its name.
        puts_per_s: Most durable results per second.
        put_s: Time of a put until it is durable.
        take_s: Time to take a batch.
        trajectory_bytes: Size of a stored trajectory.
        durability: What a put survives: fsync or os; empty if unknown.
        puts_per_s_interval: 95 % interval of `puts_per_s`.
        paced_puts_per_s: The rate at which `put_s` was measured; None if unknown.
    """

    origin: Origin
    engine: str
    puts_per_s: float
    put_s: Distribution
    take_s: Distribution
    trajectory_bytes: Distribution
    durability: str = ""
    puts_per_s_interval: Interval | None = None
    paced_puts_per_s: float | None = None


class WeightsProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long published weights take to be used.

    Args:
        origin: Where and when.
        first_token_s: From the hand-over to the publisher to the first token that they sample.
        num_bytes: Size of a version.
        publish_s: Part of it: until the version is visible.
        requests: Requests that ran meanwhile.
    """

    origin: Origin
    first_token_s: Distribution
    num_bytes: int
    publish_s: Distribution | None = None
    requests: int = 0
