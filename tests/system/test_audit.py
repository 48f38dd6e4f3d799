"""An audit with a real generator of a tiny model: it is started, asked, given new weights, and ended."""

from __future__ import annotations

from pathlib import Path

from forebay.planner.profile import read_profile
from tests.unit.cli.support import forebay
from tests.unit.cli.test_audit_parts import small

# Embedding [vocabulary, 16], one block of 16 x 16 attention of two heads, feed-forward of 16, three norms.
_BLOCK = 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 16 + 2 * 16


def test_generator_and_weights_are_measured_on_the_runs_own_episodes(tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    path = small(tmp_path, "[environment.calculator]\nmax_turns = 2\nlatency.mean_s = 30.0")
    parts = ("--part", "generator", "--part", "weights", "--seconds", "0.6", "--requests", "1,4")
    code, text = forebay("audit", str(path), *parts, "--out", str(out))
    assert code == 0, text
    found = read_profile(out)
    assert found.parts == ("generator", "weights")
    generator, weights = found.generator, found.weights
    assert generator is not None and weights is not None
    assert (generator.slots, [level.requests for level in generator.levels]) == (2, [1, 4])
    # Its delays of half a minute were left out; the model's answers end a turn after 8 tokens at the latest.
    traffic = generator.traffic["calculator"]
    assert 1 <= traffic.num_episodes <= 32
    assert traffic.turns.max <= 2.0 and traffic.sampled_tokens.max <= 8.0
    assert traffic.episode_tokens.mean > traffic.action_tokens.mean > 0.0
    last = generator.levels[-1]
    assert last.wait_s is not None and last.prefill_s is not None and last.decode_s is not None
    assert last.call_s.mean >= last.prefill_s.mean + last.decode_s.mean
    assert last.num_errors == 0 and last.prefill_tokens_per_s
    assert weights.publish_s is not None and weights.requests == 1
    assert weights.first_token_s.num_samples == weights.publish_s.num_samples >= 3
    assert weights.first_token_s.mean > weights.publish_s.mean
    assert (weights.num_bytes // 4 - _BLOCK) % 16 == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["profile.json", "small.toml"]
