"""Which groups of a store a command is about: the filters that `ls` and `export` share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, NamedTuple

import typer

from forebay.errors import ConfigError
from forebay.store import StoredGroup, StoreView

STATES = ("open", "settled", "taken", "recorded")

StateOption = Annotated[
    str | None, typer.Option(help=f"Only groups in this state: {', '.join(STATES)}.", show_default=False)
]
EnvironmentOption = Annotated[
    str | None, typer.Option(help="Only groups of this environment.", show_default=False)
]
StepOption = Annotated[
    int | None,
    typer.Option(min=0, help="Only the batch that made this version of the weights.", show_default=False),
]
VersionOption = Annotated[
    int | None,
    typer.Option(
        "--version", min=0, help="Only groups whose oldest token is of this version.", show_default=False
    ),
]
LimitOption = Annotated[
    int | None, typer.Option(min=1, help="Stop after this many groups.", show_default=False)
]


class Selection(NamedTuple):
    """What groups must be like; None where it does not matter.

    Attributes:
        state: Their state.
        environment: Their environment.
        step: The version that their batch made.
        version: The version that sampled their oldest token.
        limit: The most of them.
    """

    state: str | None = None
    environment: str | None = None
    step: int | None = None
    version: int | None = None
    limit: int | None = None

    def check(self) -> Selection:
        """Return itself.

        Raises:
            ConfigError: There is no such state.
        """
        if self.state is not None and self.state not in STATES:
            raise ConfigError("no such state of a group", got=self.state, limit=", ".join(STATES))
        return self

    def groups(self, view: StoreView, steps: Mapping[str, int]) -> Iterator[StoredGroup]:
        """Yield the groups of a store that are meant, in order of dispatch, as a stream.

        Args:
            view: The store.
            steps: The step of each group in the journal.
        """
        if self.step is None:
            candidates = view.groups()
        else:
            names = sorted(name for name, step in steps.items() if step == self.step)
            found = (view.find_group(name) for name in names)
            candidates = (group for group in found if group is not None)
        return islice((group for group in candidates if self._fits(group)), self.limit)

    def _fits(self, group: StoredGroup) -> bool:
        start = None if group.start is None else group.start.version
        return (
            self.state in (None, group.state)
            and self.environment in (None, group.environment)
            and self.version in (None, start)
        )


def steps_of(view: StoreView) -> dict[str, int]:
    """Return the step of each group in the journal: the version that its batch made."""
    return {group_id: entry.step for entry in view.journal() for group_id in entry.group_ids}
