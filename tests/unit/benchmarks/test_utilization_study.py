"""The headline benchmark: its cells, how long they are run, what is said of them."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import msgspec
import pytest

from benchmarks import utilization
from benchmarks.prose import markdown
from benchmarks.utilization_study.beside_peer import BesidePeer, ask_peer
from benchmarks.utilization_study.cells import Cell, grid
from benchmarks.utilization_study.page import chart_of, write_page
from benchmarks.utilization_study.running import CellResult, Lengths, lengths_of, seconds_to_reward
from forebay.clock import ManualClock
from forebay.config import load_config
from forebay.planner.plan import Plan
from forebay.telemetry.metrics import MetricsWriter
from forebay.telemetry.summary import RunSummary
from tests.unit.planner.profiles import ORIGIN

PLAN = Plan(
    episodes_in_flight=600,
    actor_processes=2,
    generators=1,
    max_staleness=9,
    credit=6,
    on_stale="wait",
    groups=32,
    group_size=4,
    capacity_groups=224,
    episode_timeout_s=60.0,
    busy=0.98,
    goodput=0.9,
    steps_per_s=0.4,
    staleness_mean=4.0,
    discarded=0.01,
    masked_share=0.01,
    buffer_bytes=1e6,
    sync_busy=0.049,
    reached=True,
    decoupling_helps=True,
    cost_per_hour=None,
    cost_per_1000_steps=None,
    reason="",
    arithmetic=(),
    cells=(),
)
RUN = RunSummary(
    busy=0.975,
    goodput=0.91,
    starved=0.02,
    steps=44,
    steps_per_s=0.4,
    fresh_tokens_per_s=840.0,
    max_staleness=9,
    group_size=4,
    step_s=2.4,
    env_s=4.0,
    reward_first=0.66,
    reward_last=0.86,
    staleness_max=9,
    staleness_mean=4.2,
    discarded=50,
    masked_tokens=100,
    compiles_after_warmup=0,
    accepted=5000,
    trained=4900,
    lost=0,
    repeated=0,
)


def result(cell: Cell) -> CellResult:
    sync = msgspec.structs.replace(RUN, busy=0.05, fresh_tokens_per_s=70.0, max_staleness=0)
    return CellResult(
        cell=cell,
        plan=PLAN,
        lengths=Lengths(sync_s=200.0, decoupled_s=95.0, warmup_batches=14),
        sync=sync,
        decoupled=RUN,
        sync_reward_s=None,
        decoupled_reward_s=72.0,
        load_before=0.4,
    )


def test_the_grid_has_every_mean_with_every_tail() -> None:
    cells = grid()
    assert {cell.env_s for cell in cells} == {0.25, 1.0, 4.0, 10.0}
    assert len({cell.name for cell in cells}) == len(cells) == 16
    assert sum(cell.stragglers > 0 for cell in cells) == 4


def test_a_cell_is_the_demo_with_other_tools(tmp_path: Path) -> None:
    cell = Cell(env_s=4.0, cv=1.5, stragglers=0.05)
    (tmp_path / "cell.toml").write_text(cell.config())
    config = load_config(tmp_path / "cell.toml")
    calculator = config.environment["calculator"]
    assert calculator.latency == cell.latency
    assert calculator.episode_timeout_s == 60.0
    assert (config.batching.groups, config.batching.group_size) == (32, 4)
    assert tomllib.loads(cell.config())["learner"] == {"eval_every": 0}


def test_a_cells_delays_have_its_mean_and_spread() -> None:
    drawn = Cell(env_s=4.0, cv=0.5).environment(ORIGIN).step_s
    assert drawn.mean == pytest.approx(4.0, rel=0.03)
    assert drawn.deviation / drawn.mean == pytest.approx(0.5, rel=0.1)
    straggling = Cell(env_s=4.0, stragglers=0.05).environment(ORIGIN).step_s
    assert straggling.mean == pytest.approx(4.0 * 1.35, rel=0.06)
    assert Cell(env_s=1.0, cv=4.0).latency.sigma == pytest.approx(math.sqrt(math.log(17.0)))


def test_a_cell_is_run_until_its_pipeline_is_full_and_a_minute_more() -> None:
    """2.5 s a batch, 14 of warm-up; synchronously 0.98 x 2.5 s / 0.049 = 50 s a batch."""
    found = lengths_of(PLAN)
    assert found.warmup_batches == 14
    assert found.decoupled_s == pytest.approx(14 * 2.5 + 60.0)
    assert found.sync_s == pytest.approx(200.0)
    assert lengths_of(msgspec.structs.replace(PLAN, sync_busy=0.9)).sync_s == 60.0


def test_time_to_reward_is_that_of_the_batch_that_reaches_it(tmp_path: Path) -> None:
    clock = ManualClock()
    with MetricsWriter(tmp_path / "metrics.jsonl", clock) as writer:
        for step in range(20):
            writer.write(step, {"reward": 0.05 * step})
            clock.advance(2.0)
    # The mean of batches 9 to 16 is 0.625, that of 8 to 15 is 0.575.
    assert seconds_to_reward(tmp_path, 0.6) == pytest.approx(32.0)
    assert seconds_to_reward(tmp_path, 0.8) is None


def test_the_page_shows_cells_peer_and_picture(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "explanation" / "utilization.md"
    page.parent.mkdir(parents=True)
    peer = BesidePeer(
        env_s=0.5,
        stragglers=0.05,
        turn_s=0.1,
        step_s=1.0,
        plan=PLAN,
        steps_per_s=0.97,
        busy=0.98,
        sync_steps_per_s=0.2,
        sync_busy=0.2,
        peer=[
            {"tunix": "0.1.7", "off_policy": 0, "steps_per_s": 0.16, "learner_busy": 0.21},
            {"error": "it broke"},
        ],
        ratio=0.97 / 0.16,
    )
    results = [result(Cell(env_s=1.0, stragglers=0.05)), result(Cell(env_s=4.0, stragglers=0.05))]
    write_page(page, results, [peer])
    text = page.read_text()
    assert "| 4 s | 0.5, 5% x 8 | 5.0%, **97.5%** | 91.0%, **91.0%** |" in text
    assert "| 12.0 | 600, 9 | 4.2, 9 | 1.0% | -, 72 |" in text
    assert "| 5% | google-tunix 0.1.7, off_policy_steps 0 | 21.0% | 0.160 |" in text
    assert "none: it broke" in text
    assert "6.1 times with 5% stragglers" in text
    assert (tmp_path / "docs" / "assets" / "utilization.svg").read_text().startswith("<svg")


def test_the_picture_has_a_line_for_each_tail_and_way() -> None:
    chart = chart_of([result(Cell(env_s=1.0)), result(Cell(env_s=4.0)), result(Cell(env_s=1.0, cv=4.0))])
    assert [series.label for series in chart.series] == [
        "decoupled, cv 0.5",
        "decoupled, cv 4",
        "sync, cv 0.5",
        "sync, cv 4",
    ]
    assert [point.x for point in chart.series[0].points] == [1.0, 4.0]
    assert chart.series[0].points[0].y == pytest.approx(97.5)


@pytest.mark.parametrize(
    ("script", "limit_s", "found"),
    [
        ('echo begun; echo \'{"a": 1}\'; echo "{\\"a\\": $1}"', 30.0, {"a": 7}),
        ("echo begun; echo broken >&2; exit 3", 30.0, {"error": "broken"}),
        ("exec sleep 60", 0.1, {"error": "no end within 0.1 s"}),
    ],
)
def test_a_peer_that_says_nothing_or_never_ends_costs_none_of_ours(
    tmp_path: Path, script: str, limit_s: float, found: dict[str, object]
) -> None:
    path = tmp_path / "peer.sh"
    path.write_text(script)
    assert ask_peer([str(path), "7"], limit_s) == found


def test_a_cell_that_there_is_not_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["utilization.py", "--grid", "--cells", "4s-cv0.5,4s-cv2"])
    with pytest.raises(SystemExit) as ended:
        utilization.main()
    assert ended.value.code == 2
    assert "--cells: no 4s-cv2 among 0.25s-cv0.5-stragglers0.05," in capsys.readouterr().err


def test_prose_is_wrapped_and_tables_are_not() -> None:
    long = "word " * 60
    lines = markdown(f"{long}\n\n| a | b |\n|---|---|\n| {long} | x |")
    assert max(len(line) for line in lines[:3]) <= 120
    assert lines[-2] == f"| {long} | x |"
