from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from forebay.errors import ConfigError
from forebay.learner.fit.chips import GIB, Topology, parse_topology
from forebay.learner.fit.search import Candidate, Wanted, meshes, rank_candidates, search
from forebay.learner.fit.shapes import load_model
from forebay.learner.fit.verdict import HEADROOM, Verdict, by_arithmetic
from forebay.models.settings import MeshSettings

LLAMA = load_model("llama3-8b")
V5P = parse_topology("v5p:2x2x1")


class Counted:
    """A judge that finds a factor more than estimated, and remembers what it was asked."""

    def __init__(self, topology: Topology, factor: float) -> None:
        self.topology, self.factor = topology, factor
        self.asked: list[Candidate] = []

    def __call__(self, candidate: Candidate) -> Verdict:
        self.asked.append(candidate)
        memory = candidate.memory
        grown = replace(
            memory,
            activations=int(memory.activations * self.factor),
            temporary=int(memory.temporary * self.factor),
        )
        return by_arithmetic(grown, self.topology, ())


def test_meshes_multiply_to_the_devices_and_divide_the_model() -> None:
    found = list(meshes(LLAMA, 16, 4096))
    assert all(mesh.num_devices == 16 and mesh.context == mesh.expert == 1 for mesh in found)
    assert {mesh.tensor for mesh in found} == {1, 2, 4, 8}, "eight key-value heads"
    assert len(found) == len(set(found)) == 5 + 4 + 3 + 2


def test_long_rows_are_split_over_a_context_axis() -> None:
    found = list(meshes(LLAMA, 8, 131_072))
    assert {mesh.context for mesh in found} == {1, 2, 4, 8}


def test_when_the_estimate_is_right_one_plan_is_judged() -> None:
    judge = Counted(V5P, 1.0)
    outcome = search(LLAMA, V5P, Wanted(4096), judge)
    assert outcome.verdict.fits
    assert judge.asked == [outcome.candidate]
    limit = (1 - HEADROOM) * V5P.chip.memory_bytes
    fitting = [one for one in rank_candidates(LLAMA, V5P, Wanted(4096)) if one.memory.peak <= limit]
    assert outcome.candidate == fitting[0]


def test_a_wrong_estimate_is_corrected_by_what_the_judge_says() -> None:
    judge = Counted(V5P, 1.4)
    outcome = search(LLAMA, V5P, Wanted(4096, MeshSettings(fsdp=4), remat="full"), judge)
    assert outcome.verdict.fits
    assert len(judge.asked) == 2, "the second is chosen knowing that all needs 1.4 times as much"
    assert outcome.candidate.plan.rows < judge.asked[0].plan.rows


def test_an_estimate_that_was_too_large_lets_more_rows_in() -> None:
    judge = Counted(V5P, 0.5)
    outcome = search(LLAMA, V5P, Wanted(4096, MeshSettings(fsdp=4), remat="full"), judge)
    assert outcome.verdict.fits
    assert outcome.candidate.plan.rows > judge.asked[0].plan.rows
    assert outcome.verdict.memory.peak > 0.6 * V5P.chip.memory_bytes


def test_what_fits_in_no_way_is_not_judged_at_all() -> None:
    judge = Counted(parse_topology("v5e:4x4"), 1.0)
    outcome = search(load_model("llama3-70b"), judge.topology, Wanted(4096), judge)
    assert not outcome.verdict.fits and not judge.asked
    # 16 bytes a parameter over 16 chips alone are more than a chip has.
    assert outcome.verdict.memory.resident >= 70_553_706_496
    assert f"of {15.75:.2f} GiB per device: parameters" in outcome.verdict.explain()


def test_no_more_plans_are_judged_than_allowed() -> None:
    judge = Counted(V5P, 50.0)
    outcome = search(LLAMA, V5P, Wanted(4096), judge, max_judged=3)
    assert len(judge.asked) == len(outcome.tried) == 3
    assert not outcome.verdict.fits
    assert outcome.verdict.memory.peak == min(verdict.memory.peak for _, verdict in outcome.tried)


def test_given_tokens_are_made_by_accumulation() -> None:
    wanted = Wanted(4096, tokens=1 << 20)
    outcome = search(LLAMA, V5P, wanted, Counted(V5P, 1.0))
    plan = outcome.candidate.plan
    assert plan.tokens == 1 << 20
    assert plan.rows * plan.length * plan.micro_batches == 1 << 20


def test_all_remat_policies_and_sizes_of_micro_batches_are_ranked() -> None:
    ranked = rank_candidates(LLAMA, V5P, Wanted(4096, MeshSettings(fsdp=4)))
    assert {one.plan.remat for one in ranked} == {"none", "elementwise", "dots", "full"}
    assert {one.plan.rows // 4 for one in ranked} >= {1, 2, 3, 4, 6, 8, 12, 16}
    assert math.isclose(min(one.rank[0] for one in ranked), ranked[0].rank[0], rel_tol=0.03)


def test_given_rows_leave_one_size_of_micro_batch() -> None:
    ranked = rank_candidates(LLAMA, V5P, Wanted(4096, tokens=1 << 20, rows=32))
    assert {(one.plan.rows, one.plan.micro_batches) for one in ranked} == {(32, 8)}
    assert len({one.plan.mesh for one in ranked}) > 1, "meshes and remat policies are still searched"


def test_the_next_number_of_rows_is_at_most_a_quarter_more() -> None:
    ranked = rank_candidates(LLAMA, V5P, Wanted(4096, MeshSettings(fsdp=4), remat="full"))
    rows = sorted(one.plan.rows // 4 for one in ranked)
    assert rows[0] == 1 and rows[-1] > 64
    assert all(more <= 1.25 * fewer for fewer, more in itertools.pairwise(rows) if fewer >= 4)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (Wanted(4096, tokens=100_000), "--tokens 98304"),
        (Wanted(4096, MeshSettings(fsdp=4), tokens=4096), "limit a multiple of 16384"),
        (Wanted(4096, tokens=1 << 20, rows=24), "limit a multiple of 98304"),
    ],
)
def test_tokens_that_are_not_whole_rows_are_refused_with_a_number_that_is(wanted: Wanted, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rank_candidates(LLAMA, V5P, wanted)
    assert said in str(caught.value)


def test_a_model_that_no_mesh_divides_is_refused() -> None:
    odd = replace(LLAMA, num_kv_heads=1, num_heads=7, hidden_size=4095)
    with pytest.raises(ConfigError, match="no mesh divides the model"):
        rank_candidates(odd, parse_topology("v5e:4x4"), Wanted(4095, tokens=4095 * 8))


def test_a_limit_of_memory_is_what_libtpu_says() -> None:
    assert V5P.chip.memory_bytes == int(95.73 * GIB)
