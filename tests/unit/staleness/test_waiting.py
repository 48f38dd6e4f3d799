"""What a learner without a batch waits for, at every boundary."""

from __future__ import annotations

import pytest

from forebay.staleness.waiting import cause_of_wait


@pytest.mark.parametrize(
    ("urgent", "missing", "running", "unsettled", "cause"),
    [
        (True, 0, 4, 4, "urgent"),
        (False, 0, 4, 4, "packing"),
        (False, 3, 3, 3, "episodes"),
        (False, 3, 2, 3, "actors"),
        (False, 3, 2, 2, "credit"),
        (False, 1, 0, 0, "credit"),
    ],
)
def test_the_nearest_thing_that_lacks_is_named(
    urgent: bool, missing: int, running: int, unsettled: int, cause: str
) -> None:
    found = cause_of_wait(is_urgent=urgent, num_missing=missing, num_running=running, num_unsettled=unsettled)
    assert found == cause
