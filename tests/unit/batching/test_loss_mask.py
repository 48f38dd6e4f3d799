from __future__ import annotations

import pytest

from forebay.errors import StalenessError
from forebay.staleness import Fork
from forebay.trajectory import PolicyVersion, Sampling, Sequence, VersionSpan
from tests.unit.batching.records import (
    EXPECTED,
    answer,
    batch_of,
    flat,
    group,
    sequence,
    trained_tokens,
    trajectory,
    v,
)


def test_c06_the_first_answer_token_is_a_target() -> None:
    case = EXPECTED["C06"]
    one = sequence(case["input"]["ids"], [0, 0, 0, 1, 1])
    rows = flat(batch_of(group(trajectory(one), trajectory(one, reward=0.0))))
    assert rows.loss_mask[:5].tolist() == [bool(flag) for flag in case["expect"]["target_mask"]]


def test_c07_tool_tokens_are_not_trained_and_do_not_count() -> None:
    case = EXPECTED["C07"]
    actions = [logp for logp, flag in zip(case["input"]["logp"], case["input"]["mask"], strict=True) if flag]
    one = sequence(range(7), [0, *case["input"]["mask"]], logprobs=actions)
    batch = batch_of(group(trajectory(one, reward=2.0)))
    rows = flat(batch)
    assert batch.counts.tokens == case["expect"]["loss_tokens"] == batch.denominator
    assert rows.behavior_logprobs[rows.loss_mask].tolist() == actions
    assert trained_tokens(batch) == [1, 2, 6]


def test_c08_the_sampled_eos_is_trained_though_it_is_the_padding_id() -> None:
    case = EXPECTED["C08"]["input"]
    one = sequence([*case["prompt"], *case["completion"]], [0, 1, 1, 1])
    batch = batch_of(group(trajectory(one)), max_length=16)
    assert trained_tokens(batch) == case["completion"]
    assert batch.counts.tokens == EXPECTED["C08"]["expect"]["n_tokens"]


def test_the_first_token_of_a_sequence_is_never_a_target() -> None:
    batch = batch_of(group(trajectory(sequence([7, 8, 9], [1, 1, 1]))))
    assert trained_tokens(batch) == [8, 9]
    assert batch.stats.masked_tokens == {"first": 1}


def test_c31_mask_trains_the_fresh_tokens_of_a_late_trajectory() -> None:
    case = EXPECTED["C31"]
    late = sequence(range(6), [0, 1, 1, 1, 1, 1], versions=case["input"]["token_versions"])
    batch = batch_of(group(trajectory(late)), now=v(6), max_staleness=2)
    rows = flat(batch)
    assert rows.loss_mask[1:6].tolist() == [bool(flag) for flag in case["expect"]["policy_token_mask"]]
    assert batch.counts.tokens == case["expect"]["loss_tokens"]
    assert batch.stats.masked_tokens == {"stale": 2}
    assert batch.stats.staleness_histogram == (0, 1, 2)
    assert (batch.stats.staleness_max, batch.stats.discarded) == (2, 0)
    # Masked tokens are context all the same.
    assert rows.tokens[:6].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("on_stale", ["wait", "drop"])
def test_c31_without_mask_one_old_token_rejects_its_trajectory_only(on_stale: str) -> None:
    late = sequence(range(6), [0, 1, 1, 1, 1, 1], versions=[3, 3, 4, 4, 5])
    fresh = sequence(range(10, 13), [0, 1, 1], versions=[4, 4])
    pair = group(trajectory(late, reward=0.0), trajectory(fresh, reward=1.0))
    batch = batch_of(pair, now=v(6), max_staleness=2, on_stale=on_stale)
    rows = flat(batch)
    assert trained_tokens(batch) == [11, 12]
    assert batch.stats.masked_tokens == {"stale": 5}
    assert batch.stats.discarded == 1
    # The late sibling stays in the baseline.
    assert rows.advantages[rows.loss_mask].tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("version", "trained"), [(7, True), (6, False), (10, True)])
def test_c33_the_limit_itself_is_fresh(version: int, trained: bool) -> None:
    one = sequence([1, 2], [0, 1], versions=[version])
    assert batch_of(group(trajectory(one)), max_staleness=3).empty is not trained


def test_c33_a_token_from_the_future_is_an_error() -> None:
    one = sequence([1, 2], [0, 1], versions=[11])
    with pytest.raises(StalenessError):
        batch_of(group(trajectory(one)), max_staleness=3)


def test_c35_tokens_of_an_older_incarnation_count_from_the_fork() -> None:
    template = sequence([1, 2, 3], [0, 1, 1])
    one = Sequence(
        tokens=template.tokens,
        action_spans=template.action_spans,
        behavior_logprobs=template.behavior_logprobs,
        version_spans=(VersionSpan(1, v(40), v(35)), VersionSpan(1, v(37), v(30))),
        sampling=template.sampling,
    )
    now = PolicyVersion(1, 40)
    batch = batch_of(group(trajectory(one)), now=now, forks=(Fork(1, 38),), max_staleness=2)
    assert trained_tokens(batch) == [2]
    assert batch.stats.staleness_histogram == (0, 0, 1)
    # The cache of the trained token was 5 old; that of the masked one, 10, is nobody's concern.
    assert batch.stats.kv_staleness_max == 5


def test_c09_truncated_members_can_be_left_out_and_stay_in_the_baseline() -> None:
    case = EXPECTED["C09"]
    members = [
        trajectory(answer(length + 1), reward=reward, name=f"t{i}", truncated=bool(cut))
        for i, (reward, length, cut) in enumerate(
            zip(case["input"]["rewards"], case["input"]["lengths"], case["input"]["truncated"], strict=True)
        )
    ]
    batch = batch_of(group(*members), mask_truncated=True)
    rows = flat(batch)
    assert batch.counts.tokens == case["expect"]["loss_tokens"]
    # The surrogate loss at ratio 1 is minus the mean advantage.
    loss = -float(rows.advantages[rows.loss_mask].sum()) / batch.denominator
    assert loss == pytest.approx(case["expect"]["baseline_all"]["loss"])
    assert batch.stats.masked_tokens == {"truncated": 8}
    assert (batch.stats.truncated, batch.stats.discarded) == (1, 1)
    unmasked = batch_of(group(*members))
    assert unmasked.counts.tokens == 16
    assert unmasked.stats.truncated == 1


def test_c15_an_unscored_member_is_masked_and_its_siblings_are_not_touched() -> None:
    case = EXPECTED["C15"]
    members = [trajectory(answer(3), reward=reward) for reward in case["input"]["rewards"]]
    batch = batch_of(group(*members))
    rows = flat(batch)
    adv = sorted(
        value for value, flag in zip(case["expect"]["adv"]["mean"], [1, 0, 1, 1], strict=True) if flag
    )
    assert sorted(rows.advantages[rows.loss_mask][::2].tolist()) == pytest.approx(adv, abs=1e-6)
    assert batch.stats.unscored == case["expect"]["unscored"]
    assert batch.stats.reward_mean == pytest.approx(case["expect"]["reward_mean_metric"], abs=1e-6)
    assert batch.stats.masked_tokens == {"unscored": 2}


@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=0.0), Sampling(top_p=0.9), Sampling(top_k=5), Sampling(logprob_kind="raw")],
)
def test_tokens_of_a_truncated_distribution_are_not_trained(sampling: Sampling) -> None:
    batch = batch_of(group(trajectory(answer(4, sampling=sampling)), trajectory(answer(3))))
    assert batch.counts.tokens == 2
    assert batch.stats.masked_tokens == {"untrainable": 3}


def test_c46_error_names_the_trajectory_and_the_lengths() -> None:
    members = [trajectory(answer(n), name=f"t{n}") for n in EXPECTED["C46"]["input"]["lengths"]]
    with pytest.raises(Exception, match=r"trajectory t40 .*got 40 tokens, limit 32") as caught:
        batch_of(group(*members))
    assert caught.value.exit_code == 2  # type: ignore[attr-defined]


def test_c46_drop_counts_what_it_drops() -> None:
    members = [trajectory(answer(n), name=f"t{n}") for n in (10, 40, 12)]
    batch = batch_of(group(*members), oversize="drop")
    assert batch.counts.sequences == EXPECTED["C46"]["expect"]["drop"]["kept"]
    assert batch.stats.too_long == ("t40",)
    assert batch.stats.masked_tokens == {"too_long": 39}
    assert batch.stats.real_tokens == 22


def test_c46_truncate_keeps_the_head() -> None:
    members = [trajectory(answer(n), name=f"t{n}") for n in (10, 40, 12)]
    batch = batch_of(group(*members), oversize="truncate")
    assert batch.counts.sequences == EXPECTED["C46"]["expect"]["truncate"]["kept"]
    assert batch.stats.real_tokens == sum(EXPECTED["C46"]["expect"]["truncate"]["lengths"])
    assert batch.stats.too_long == ("t40",)
    assert batch.stats.masked_tokens == {"too_long": 8}
    assert max(trained_tokens(batch)) == 131


def test_c46_all_dropped_is_an_empty_batch() -> None:
    members = [trajectory(answer(n)) for n in EXPECTED["C46"]["input"]["all_too_long"]]
    batch = batch_of(group(*members), oversize="drop")
    assert batch.empty
    assert batch.micro_batches == ()
    assert (batch.denominator, batch.stats.discarded, batch.stats.fill) == (1.0, 2, 1.0)


def test_a_long_tail_of_observations_makes_no_sequence_too_long() -> None:
    one = sequence(range(40), [0] + [1] * 9 + [0] * 30)
    batch = batch_of(group(trajectory(one)))
    assert (batch.counts.tokens, batch.stats.real_tokens, batch.stats.too_long) == (9, 10, ())
