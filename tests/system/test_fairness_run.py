"""A whole run over two environments of very different speed: who is trained, and what replaces what fails."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from forebay.cli.runs import join_run
from tests.system.harness import CONFIG, Harness, account

STEPS, GROUPS, GROUP_SIZE = 12, 4, 2
ENVIRONMENTS = """
[environment.fast]
entrypoint = "tests.system.fairness_environment:Uneven"
latency.mean_s = 0.02
num_tasks = 200

[environment.slow]
entrypoint = "tests.system.fairness_environment:Uneven"
kwargs.broken_every = 4
latency.mean_s = 0.3
num_tasks = 200

"""


@pytest.mark.timeout(600)
def test_c56_c37_every_batch_has_its_shares_and_what_fails_is_replaced(tmp_path: Path) -> None:
    """Weights 1:1, speeds 1:15, and a quarter of the slow tasks never work."""
    config = tmp_path / "fair.toml"
    text, replaced = re.subn(
        r"(?s)\[environment\.variety\].*?(?=\[staleness\])", ENVIRONMENTS, CONFIG.read_text()
    )
    assert replaced == 1
    config.write_text(text)
    with Harness(tmp_path, (f"learner.steps={STEPS}",), config=config) as harness:
        assert harness.run_through(()) == 0, harness.tail()
        totals, wrong = account(harness)
    assert wrong == []
    assert totals["trained"] == STEPS * GROUPS * GROUP_SIZE
    with join_run(harness.run).view_store() as view:
        environments = {group.group_id: group.environment for group in view.groups()}
        sizes = {group.group_id: group.num_arrived for group in view.groups()}
        batches = [entry.group_ids for entry in view.journal()]
        counters = view.stats().counters
    shares = [Counter(environments[group_id] for group_id in batch) for batch in batches]
    assert shares == [Counter(fast=GROUPS // 2, slow=GROUPS // 2)] * STEPS
    assert {sizes[group_id] for batch in batches for group_id in batch} == {GROUP_SIZE}
    # About a quarter of the slow tasks: each is dropped for that reason, and another group takes its place.
    assert counters["dropped.failed"] >= STEPS * GROUPS // 2 // 8
    assert counters["dispatched"] == counters["recorded"] + counters["dropped.failed"] + (
        len(environments) - STEPS * GROUPS
    )
