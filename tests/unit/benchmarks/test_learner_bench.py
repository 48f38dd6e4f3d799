from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax")

import jax

from benchmarks import learner
from benchmarks.learner_bench import page
from benchmarks.learner_bench.flops import PASSES, ModelFlops, training_flops, visible_pairs
from benchmarks.learner_bench.measuring import Timed, in_turns, ratios, spread
from benchmarks.learner_bench.packing_gain import packed_and_padded
from benchmarks.learner_bench.plan import EFFORTS
from benchmarks.learner_bench.shapes import MODELS, Case
from benchmarks.learner_bench.step import rows_of
from benchmarks.learner_bench.whole_loop import measure_loop
from forebay.batching.packing import Bucket
from forebay.models.config import ModelConfig
from forebay.models.layer_kinds import LayerKind
from forebay.models.logprobs import token_logprobs
from forebay.models.params import init_params
from forebay.models.settings import ComputeSettings

ROOT = Path(__file__).resolve().parents[3]
BY_HAND = ModelConfig(
    vocab_size=10,
    num_real_tokens=10,
    hidden_size=4,
    intermediate_size=6,
    num_layers=3,
    num_heads=2,
    num_kv_heads=1,
    head_size=2,
    max_position=8,
)


def test_operations_of_a_tiny_model_by_hand() -> None:
    # A block: queries 4 x 4, keys 4 x 2, values 4 x 2, output 4 x 4, three feed-forward 4 x 6: 120. Head: 40.
    # Segments of 3 and 2 tokens see 6 + 3 pairs, each 2 heads x 2 wide, twice, in 3 blocks.
    expected = ModelFlops(matrices=3 * 2 * 5 * (3 * 120 + 40), attention=3 * 3 * 2 * 2 * (2 * 2) * 9)
    assert training_flops(BY_HAND, [(3, 2)]) == expected
    assert training_flops(BY_HAND, [(3,), (2,)]) == expected


def test_a_window_takes_pairs_away() -> None:
    seen = sum(min(query + 1, 4) for query in range(9))
    assert visible_pairs(9, 4) == seen == 30
    windowed = dataclasses.replace(BY_HAND, pattern=(LayerKind(window=4), LayerKind(), LayerKind(window=4)))
    pairs = 30 + 45 + 30
    assert training_flops(windowed, [(9,)]).attention == 3 * 4 * 2 * 2 * pairs


def test_operations_against_the_compilers_count() -> None:
    """With dense attention a compiler counts all pairs, masked or not; what is no product adds a little."""
    tokens = 64
    model = dataclasses.replace(
        BY_HAND, vocab_size=512, num_real_tokens=512, hidden_size=64, intermediate_size=192, head_size=32
    )
    compute = ComputeSettings(attention="dense", max_unrolled_layers=8)

    def loss(params, row):
        return token_logprobs(
            params, model, row, row * 0 + 1, jax.numpy.arange(tokens)[None], row * 0 + 1.0, compute=compute
        )[0].sum()

    params = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
    row = jax.ShapeDtypeStruct((1, tokens), np.int32)
    counted = jax.jit(jax.grad(loss)).lower(params, row).cost_analysis()["flops"]
    mine = training_flops(model, [(tokens,)])
    all_pairs = mine.attention * tokens**2 // visible_pairs(tokens)
    products = mine.matrices + all_pairs
    assert products <= counted <= 1.12 * products
    assert counted > 1.5 * products / PASSES * 2  # a forward pass alone would be a third


def test_the_named_sizes_are_what_they_say() -> None:
    millions = {name: MODELS[name].num_parameters / 1e6 for name in ("1M", "20M", "135M")}
    assert millions == pytest.approx({"1M": 1.05, "20M": 20.4, "135M": 134.5}, rel=0.01)


def test_spread_holds_the_median_with_the_confidence_it_states() -> None:
    figures = spread([float(value) for value in range(1, 16)])
    # Binomial(15, 1/2): at most 3 below the median in 1.76 % of cases, on either side.
    assert figures[:4] == (8.0, 4.0, 12.0, 15)
    assert figures.confidence == pytest.approx(1 - 2 * sum(math.comb(15, k) for k in range(4)) / 2**15)
    assert spread([2.0]) == (2.0, 2.0, 2.0, 1, 0.0)
    with pytest.raises(ValueError, match="no value"):
        spread([])


def test_one_slow_minute_moves_no_ratio() -> None:
    slow = [1.0, 1.0, 7.0, 1.0, 1.0]
    above, below = [Timed(3 * s, 3 * s) for s in slow], [Timed(2 * s, 2 * s) for s in slow]
    assert ratios(above, below)["wall"].median == ratios(above, below)["cpu"].high == 1.5


def test_turns_go_back_and_forth() -> None:
    order: list[str] = []

    def work(name: str):
        return lambda: order.append(name) or Timed(len(order), 0.0)

    taken = in_turns({"a": work("a"), "b": work("b")}, 3)
    assert "".join(order) == "abbaab"
    assert [one.wall_s for one in taken["b"]] == [2, 3, 6]


def test_rows_are_full_and_segments_begin_without_a_target() -> None:
    rows = rows_of(Bucket(2, 8), [(5, 3), (4,)], 100)
    assert rows.segment_ids.tolist() == [[1] * 5 + [2] * 3, [1] * 4 + [0] * 4]
    assert rows.positions[0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert np.count_nonzero(rows.loss_mask) == 4 + 2 + 3
    assert (rows.tokens[1, 4:] == 0).all()


def test_packed_rows_hold_every_sequence_once() -> None:
    ways = packed_and_padded(EFFORTS["full"].gain.lengths, 1024)
    members = sorted(index for row in ways["packed"] for index in row)
    assert members == list(range(len(EFFORTS["full"].gain.lengths)))
    assert (len(ways["packed"]), len(ways["padded"])) == (2, 6)


def test_the_whole_loop_trains_what_the_store_holds(tmp_path: Path) -> None:
    case = EFFORTS["test"].loops[0]
    figures = measure_loop(case, tmp_path, sorted(os.sched_getaffinity(0)))
    assert figures.trained == (4 * case.steps, 4 * case.steps)
    assert figures.speed.count == case.rounds
    assert 4 * case.episode_tokens[0] <= figures.tokens <= 4 * case.episode_tokens[1]
    assert len(list((tmp_path / "loop" / "checkpoints").iterdir())) >= 1


def test_targets_are_judged_by_the_slowest_loop_and_the_named_row_alone() -> None:
    step = {"model": "135M", "segments": [1024], "of_peak": {"median": 0.61}}
    other = {"model": "135M", "segments": [256], "of_peak": {"median": 0.1}}
    torch = {"model": "135M", "rows": [1, 1024], "speed_of_torch": {"cpu": {"median": 0.97}}}
    loops = [{"speed": {"median": 0.99}}, {"speed": {"median": 0.975}}]
    found = page.targets({"utilization": [step, other], "torch": [torch], "loop": loops})
    assert {name: (one["got"], one["met"]) for name, one in found.items()} == {
        "loop": (0.975, False),
        "utilization": (0.61, True),
        "torch": (0.97, False),
    }
    assert page.targets({"torch": {"skipped": "no Python"}}) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--write", "no/such/page.md"], "no/such/page.md is no file"),
        (["--torch-python", "no-such-python"], "no-such-python is no program"),
        (["--compute", "remat"], "--compute needs KEY=VALUE, not 'remat'"),
        (["--compute", "remat=some"], "remat"),
        (["--compute", "speed=9"], "speed"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_measured(
    options: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["learner.py", "--json", *options])
    monkeypatch.setattr(learner, "EFFORTS", {})
    with pytest.raises(SystemExit) as ended:
        learner.main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_the_command_writes_its_page(tmp_path: Path) -> None:
    written = tmp_path / "page.md"
    written.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    options = ["--effort", "test", "--write", str(written), "--only", "utilization", "torch"]
    done = subprocess.run(
        [sys.executable, "benchmarks/learner.py", *options],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(done.stdout)
    (case,) = EFFORTS["test"].steps
    (found,) = report["utilization"]
    flops = training_flops(MODELS[case.model], [case.segments])
    assert Case(found["model"], tuple(found["segments"]), case.rounds) == case
    assert found["flops"] == flops._asdict()
    assert 0 < found["of_peak"]["median"] < 1
    # Parameters, two moments and gradients in float32, and less than a kilobyte of counters.
    assert found["memory"]["state"] // 1024 == 4 * 4 * MODELS["tiny"].num_parameters // 1024
    assert report["torch"] == {"skipped": "no Python with torch and transformers was named (--torch-python)"}
    text = written.read_text()
    assert text.startswith("before\n") and text.endswith("after\n")
    assert "Not compared with torch" in text
    assert "| tiny | 32, 2 segments |" in text
