from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from forebay.report import load_run, render_page
from tests.unit.report.runs import CONFIG, line, make_run, make_trajectory, new_values

VOID = {"meta", "link", "input", "path", "br", "img"}


class Checker(HTMLParser):
    """Notes elements that are not closed in order, identifiers, addresses, and the scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.identifiers: list[str] = []
        self.addresses: list[str] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.identifiers.append(value)
            if name in ("src", "href", "action", "data", "srcset"):
                self.addresses.append(value)
            if name.startswith("on"):
                self.wrong.append(f"{tag} {name}")

    def handle_endtag(self, tag) -> None:
        if tag not in VOID and (not self.open or self.open.pop() != tag):
            self.wrong.append(f"/{tag}")

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)


def checked(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert (checker.wrong, checker.open) == ([], [])
    assert len(set(checker.identifiers)) == len(checker.identifiers)
    return checker


def data_of(html: str):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1]
    )


@pytest.fixture
def run(tmp_path):
    lines = [line(**new_values()) for _ in range(3)]
    made = make_run(tmp_path / "run", lines, summary=True, trajectories={2: [make_trajectory()]})
    return load_run(made)


def test_the_page_is_whole_and_needs_nothing_else(run) -> None:
    checker = checked(render_page([run]))
    assert {a for a in checker.addresses if not a.startswith("#")} == {"data:,"}
    assert {a[1:] for a in checker.addresses if a.startswith("#")} <= set(checker.identifiers)


def test_only_its_own_scripts_may_run(run) -> None:
    html = render_page([run])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1].replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; ")
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert re.findall(r"'sha256-([^']+)'", policy) == digests
    assert len(digests) == 2
    assert "MIT License" in scripts[0]


def test_charts_have_the_columns_that_they_name(run) -> None:
    data = data_of(render_page([run]))
    for chart in data["charts"]:
        for drawn in chart["lines"]:
            table = data["runs"][drawn["run"]][drawn["source"]]
            assert len(table[drawn["column"]]) == len(table["time"]) == len(table["step"]) > 0
    busy = next(chart for chart in data["charts"] if chart["anchor"] == "busy")
    assert [drawn["label"] for drawn in busy["lines"]] == ["busy", "goodput"]
    assert data["runs"][0]["batches"]["time"] == [4.0, 8.0, 12.0]


def test_model_text_cannot_leave_its_place(tmp_path) -> None:
    attack = "</script><img src=x onerror=alert(1)>{{ 7*7 }}"
    hostile = {
        f"environment.{attack}": 1.0,
        f"finish.{attack}": 3,
        f"masked.{attack}": 2,
        f"store.errors.{attack}": 1,
    }
    made = make_run(
        tmp_path / "run", [line(**hostile)] * 2, config=CONFIG | {"run": {"name": attack}},
        actors=[{f"failures.{attack}\x1b[2J\u202e": 4}],
        trajectories={2: [make_trajectory(said="<img src=x>")]},
    )  # fmt: skip
    html = render_page([load_run(made)], title=attack)
    checked(html)
    assert "<img" not in html
    assert not {"\x1b", "\u202e"} & set(html)
    assert "{{ 7*7 }}" in html


def test_two_runs_stand_side_by_side(run, tmp_path) -> None:
    other = load_run(make_run(tmp_path / "other", [line()] * 2, config=CONFIG | {"generator": {"slots": 16}}))
    html = render_page([run, other])
    checked(html)
    assert html.count('<figure class="strip">') == 2
    assert "Settings that differ" in html
    assert "generator.slots" in html
    assert len(data_of(html)["runs"]) == 2


@pytest.mark.parametrize("config", [CONFIG, {}])
def test_a_run_that_has_nothing_has_a_page(tmp_path, config) -> None:
    html = render_page([load_run(make_run(tmp_path / "dead", config=config))])
    checked(html)
    assert data_of(html)["charts"] == []
    assert html.count("not recorded") > 10
    assert "no batch has been trained" in html


def test_a_long_run_makes_a_small_page(tmp_path) -> None:
    run = load_run(make_run(tmp_path / "long", [line(**new_values())] * 2000))
    html = render_page([run])
    assert len(html.encode()) < 500_000
    assert len(data_of(html)["runs"][0]["batches"]["time"]) <= 600
