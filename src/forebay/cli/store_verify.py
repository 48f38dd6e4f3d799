"""`forebay store verify`: are the accounts right, and can every frame be read back?"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from forebay.cli.roles import RunPath
from forebay.cli.runs import join_run
from forebay.cli.store_summary import format_bytes
from forebay.errors import StoreError
from forebay.store import StoreView, count_lost
from forebay.store.batches import decode_group_frames


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A frame that cannot be read back.

    Args:
        group_id: Its group.
        member: Its place in the group.
        trajectory_id: What it held.
        reason: Why, in a word.
        message: Why.
    """

    group_id: str
    member: int
    trajectory_id: str
    reason: str
    message: str


class Verdict(msgspec.Struct, kw_only=True):
    """What was found.

    Args:
        groups: Groups looked at.
        trajectories: Frames decoded whole.
        num_bytes: Their bytes.
        lost: Acknowledged trajectories that are nowhere; 0.
        quarantined: Frames set aside earlier, when their group was taken.
        problems: Totals that contradict the records.
        corrupt: Frames that cannot be read back.
    """

    groups: int = 0
    trajectories: int = 0
    num_bytes: int = 0
    lost: int = 0
    quarantined: int = 0
    problems: tuple[str, ...] = ()
    corrupt: list[Finding] = []

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.problems or self.corrupt)


def verify(
    run: RunPath,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Recount every record and decode every frame; exit with 4 if one is corrupt, lost or miscounted.

    The run may be going on, and nothing is changed.

    Examples:
        forebay store verify runs/calculator
        forebay store verify runs/calculator --json
    """
    with join_run(run).view_store() as view:
        verdict = examine(view)
    if as_json:
        tree: dict[str, Any] = msgspec.to_builtins(verdict) | {"sound": verdict.sound}
        typer.echo(msgspec.json.format(msgspec.json.encode(tree), indent=2).decode())
    else:
        typer.echo("\n".join(_lines(verdict)))
    if not verdict.sound:
        raise typer.Exit(StoreError.exit_code)


def examine(view: StoreView) -> Verdict:
    """Return what is wrong with a store; what goes away meanwhile is left out.

    The totals are recounted in one snapshot, the frames group by group.
    """
    verdict = Verdict(
        lost=count_lost(view.stats()), problems=view.audit(), quarantined=len(view.set_aside()), corrupt=[]
    )
    for group in view.groups():
        verdict.groups += 1
        if not group.num_arrived:
            continue
        try:
            raw = view.read_raw(group.group_id)
        except StoreError:  # forgotten since it was listed
            continue
        taken, broken = decode_group_frames(raw)
        verdict.trajectories += len(taken.trajectories)
        verdict.num_bytes += sum(len(frame) for member, frame in raw.frames if member not in broken)
        now = view.find_group(group.group_id) if broken else group
        for member, error in broken.items():
            if now is not None and now.members[member].state == "arrived":
                verdict.corrupt.append(
                    Finding(
                        group_id=group.group_id,
                        member=member,
                        trajectory_id=group.members[member].trajectory_id,
                        reason=error.reason,
                        message=str(error),
                    )
                )
    return verdict


def _lines(verdict: Verdict) -> list[str]:
    read = (
        f"{verdict.trajectories} trajectories of {verdict.groups} groups, {format_bytes(verdict.num_bytes)}"
    )
    lines = [f"wrong account: {problem}" for problem in verdict.problems]
    lines += [
        f"corrupt: trajectory {found.trajectory_id}, member {found.member} of group {found.group_id}: "
        f"{found.message}"
        for found in verdict.corrupt
    ]
    if verdict.quarantined:
        lines.append(f"{verdict.quarantined} frames lie in quarantine; see forebay store show RUN GROUP")
    if verdict.sound:
        lines += [f"every frame can be read back: {read}", "accounts are right: 0 trajectories lost"]
    else:
        lines += [f"read back: {read}", f"{verdict.lost} trajectories lost"]
    return lines
