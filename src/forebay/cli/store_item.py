"""`forebay store show`: one group or one trajectory of a store, as a conversation, token by token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from forebay.cli.runs import Run
from forebay.cli.store_listing import group_tree
from forebay.cli.store_selection import steps_of
from forebay.cli.store_summary import format_age, format_bytes
from forebay.cli.transcript import legend, summary, tint, visible
from forebay.clock import SystemClock
from forebay.errors import ConfigError, RecordError, WireError
from forebay.report.samples import MAX_SAMPLE_TOKENS, Message, Sample, Token, TokenRules, make_sample
from forebay.store import GroupSpec, StoredGroup, StoreView
from forebay.store.batches import decode_group_frames
from forebay.store.rows import to_row
from forebay.trajectory import Trajectory, check_name
from forebay.wire import decode

_MAX_LISTED = 48
_MAX_PAYLOAD = 400


class Item(NamedTuple):
    """A group, or one trajectory of it, with all that is known about it.

    Attributes:
        group: Its record.
        spec: What was dispatched.
        step: The version that its batch made; None if it has not been trained.
        samples: Its trajectories, or the one that was asked for, by member.
        broken: Why each other member that arrived cannot be read back.
        quarantined: Why the members set aside earlier could not be read back.
    """

    group: StoredGroup
    spec: GroupSpec
    step: int | None
    samples: dict[int, Sample]
    broken: dict[int, str]
    quarantined: dict[int, str]


def show_item(run: Run, name: str, *, as_json: bool) -> None:
    """Print a group or a trajectory.

    Raises:
        ConfigError: There is none of that name.
    """
    with run.view_store() as view:
        item = find_item(view, run, name)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(item_tree(item)), indent=2).decode())
    else:
        _Page(Console(highlight=False, soft_wrap=True)).show(item)


def find_item(view: StoreView, run: Run, name: str) -> Item:
    """Return the group of a name, or that of the trajectory of a name with it alone.

    Raises:
        ConfigError: There is none of that name.
    """
    try:
        check_name(name, "the name of a group or a trajectory")
    except RecordError as error:
        raise ConfigError(str(error)) from error
    group, member = _find(view, name)
    raw = view.read_raw(group.group_id)
    taken, broken = decode_group_frames(raw)
    step = steps_of(view).get(group.group_id)
    made = step if step is not None else view.stats().published.version + 1
    rules = TokenRules(staleness=run.config.staleness, batching=run.config.batching)
    return Item(
        group=group,
        spec=raw.spec,
        step=step,
        samples={
            trajectory.member: make_sample(made, trajectory, run.chat, rules, MAX_SAMPLE_TOKENS)
            for trajectory in taken.trajectories
            if member in (None, trajectory.member)
        },
        broken={index: str(error) for index, error in broken.items()},
        quarantined=dict(_quarantined(view, group.group_id)),
    )


def item_tree(item: Item) -> dict[str, Any]:
    """Return a group or a trajectory for scripts."""
    return {
        "group": group_tree(item.group, item.step),
        "task": msgspec.to_builtins(item.spec.task),
        "broken": {str(member): why for member, why in item.broken.items()},
        "quarantined": {str(member): why for member, why in item.quarantined.items()},
        "trajectories": [
            {
                **to_row(sample.trajectory, item.spec.task, item.group.state, item.step),
                "messages": msgspec.to_builtins(sample.branches),
                "num_cut_tokens": sample.num_cut_tokens,
            }
            for sample in item.samples.values()
        ],
    }


def _find(view: StoreView, name: str) -> tuple[StoredGroup, int | None]:
    """Return a group, and which member is meant if it is one alone."""
    group = view.find_group(name)
    if group is not None:
        return group, None
    # A trajectory is called GROUP.MEMBER.ATTEMPT by every actor of ours, but it need not be.
    near = view.find_group(name.rsplit(".", 2)[0])
    for candidate in [near] if near is not None else []:
        for index, member in enumerate(candidate.members):
            if member.trajectory_id == name:
                return candidate, index
    for candidate in view.groups():
        for index, member in enumerate(candidate.members):
            if member.trajectory_id == name:
                return candidate, index
    raise ConfigError(
        f"the store holds no group and no trajectory {name}",
        remedy="List what there is: forebay store ls RUN. What is trained is forgotten after a checkpoint.",
    )


def _quarantined(view: StoreView, group_id: str) -> Iterator[tuple[int, str]]:
    for kept in view.set_aside():
        if kept.group_id == group_id:
            try:
                decode(kept.frame)
                yield kept.member, "it can be read back now"
            except WireError as error:
                yield kept.member, str(error)


class _Page:
    """Prints an item for people."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._now_s = SystemClock().wall_s()

    def show(self, item: Item) -> None:
        for name, value in self._facts(item):
            self._console.print(Text(f"{name:<13} ", "dim").append(visible(value)))
        self._console.print()
        for index in range(len(item.group.members)):
            self._console.print(Text(visible(self._member(item, index))))
        for sample in item.samples.values():
            self._sample(sample)
        if item.samples:
            self._console.print(legend(), style="dim")

    def _facts(self, item: Item) -> Iterator[tuple[str, str]]:
        group, task = item.group, item.spec.task
        payload = msgspec.json.encode(task.payload).decode()
        more = "..." if len(payload) > _MAX_PAYLOAD else ""
        yield "group", f"{group.group_id}, {group.state}, of environment {group.environment}"
        yield "task", f"{task.task_id} {payload[:_MAX_PAYLOAD]}{more}"
        yield (
            "dispatched",
            f"{format_age(max(0.0, self._now_s - group.dispatched_s))} ago by incarnation "
            f"{group.incarnation}, as number {group.serial}",
        )
        if group.deadline_wall_s is not None and group.state == "open":
            yield "deadline", self._when(group.deadline_wall_s)
        start = "nobody has begun" if group.start is None else f"from version {group.start.version} on"
        yield "sampled", start
        yield "trained", "not yet" if item.step is None else f"by the batch that made version {item.step}"
        yield "size", f"{format_bytes(group.num_bytes)}, stored or reserved"

    def _member(self, item: Item, index: int) -> str:
        member = item.group.members[index]
        said = [f"member {index}: {member.state}"]
        if member.attempt:
            said.append(f"{member.attempt} attempts failed")
        if member.state == "leased":
            said.append(f"held by {member.actor}, lease {self._when(member.lease_expires_s)}")
        if member.state == "arrived":
            said.append(f"{member.trajectory_id} of {format_bytes(member.num_bytes)} from {member.actor}")
        if index in item.broken:
            said.append(f"cannot be read back: {item.broken[index]}")
        if index in item.quarantined:
            said.append(f"in quarantine: {item.quarantined[index]}")
        return ", ".join(said)

    def _when(self, wall_s: float) -> str:
        left_s = wall_s - self._now_s
        return f"ends in {format_age(left_s)}" if left_s > 0 else f"ended {format_age(-left_s)} ago"

    def _sample(self, sample: Sample) -> None:
        trajectory = sample.trajectory
        self._console.print(Text(f"\n{visible(trajectory.trajectory_id)}: {summary(trajectory)}", "bold"))
        self._console.print(Text(f"  {_versions(trajectory)}; {_masks(sample)}", "dim"))
        for number, branch in enumerate(sample.branches, 1):
            if len(sample.branches) > 1:
                self._console.print(Text(f"branch {number} of {len(sample.branches)}", "bold"))
            for message in branch:
                self._message(message)
        if sample.num_cut_tokens:
            self._console.print(Text(f"  {sample.num_cut_tokens} more tokens are not shown", "dim"))

    def _message(self, message: Message) -> None:
        if message.speaker == "context":
            self._console.print(Text("told: ", "cyan").append(visible(message.text)))
            return
        line, listed = Text("policy: ", "bold"), Text("  ")
        for token in message.tokens:
            line.append(visible(token.text), tint(token.logprob))
        for token in message.tokens[:_MAX_LISTED]:
            why = "" if token.reason in ("", "fresh") else f" {token.reason}"
            listed.append(f"{visible(token.text)} ", tint(token.logprob))
            listed.append(f"{token.logprob:.2f} v{token.version}{why}  ", "dim")
        self._console.print(line)
        self._console.print(listed.append("..." if len(message.tokens) > _MAX_LISTED else ""))
        if message.record is not None:
            self._console.print(Text(f"  {_record(message)}", "dim"))


def _record(message: Message) -> str:
    record = message.record
    if record is None:
        return ""
    reward = "no reward" if record.reward is None else f"reward {record.reward:g}"
    return (
        f"{len(message.tokens)} tokens, stopped by {visible(record.finish)}; waited "
        f"{format_age(record.generator_wait_s)}, generated {format_age(record.generate_s)}; environment "
        f"{format_age(record.environment_s)}, {reward}"
    )


def _versions(trajectory: Trajectory) -> str:
    counts: Counter[int] = Counter()
    for sequence in trajectory.sequences:
        for span in sequence.version_spans:
            counts[span.version.version] += span.num_tokens
    named = ", ".join(f"{count} by version {version}" for version, count in sorted(counts.items()))
    return f"sampled tokens: {named or 'none'}"


def _masks(sample: Sample) -> str:
    counts = Counter(token.reason or "unknown" for token in _tokens(sample.branches))
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items())) or "none shown"


def _tokens(branches: Sequence[Sequence[Message]]) -> Iterator[Token]:
    return (token for branch in branches for message in branch for token in message.tokens)
