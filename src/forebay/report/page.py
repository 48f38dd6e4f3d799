"""The page: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final

import jinja2
import msgspec
from markupsafe import Markup

from forebay.report.charts import RUN_COLORS
from forebay.report.columns import tables_of
from forebay.report.conversation import NUM_VERSION_TINTS, PROBABILITIES, conversation_of
from forebay.report.data_panels import environment_panel, staleness_panel
from forebay.report.decision_panel import decision_panel
from forebay.report.episode_panels import failures_panel, lengths_panel
from forebay.report.learner_panels import batches_panel, learning_panel, time_panel, use_panel
from forebay.report.life_panels import life_panel
from forebay.report.load import RunRecord
from forebay.report.overview import comparison_of, configuration_panel, figures_of, head_of
from forebay.report.panels import Chart, Panel, RunTables, kind_of
from forebay.report.text import json_for_script, visible

_ASSETS: Final = files("forebay") / "assets"


def render_page(runs: Sequence[RunRecord], title: str | None = None) -> str:
    """Return the report of one run, or of two side by side, as HTML.

    The page loads nothing: scripts and styles are in it, and its policy forbids everything else, so that text
    of a model can neither run nor call home.

    Args:
        runs: One or two.
        title: Heading of the page; by default the names of the runs.
    """
    tables = [tables_of(run) for run in runs]
    panels = _panels(runs, tables)
    plotting, script = _asset("vendor/uPlot.iife.min.js"), _asset("report/page.js")
    plotting = f"/*\n{_asset('vendor/uPlot.LICENSE')}\n*/\n{plotting}"
    page = _environment().from_string(_asset("report/page.html.j2"))
    return page.render(
        title=title or " and ".join(run.name for run in runs),
        heads=[head_of(run) for run in runs],
        comparison=comparison_of(runs),
        figures=figures_of(runs),
        panels=panels,
        samples=[(run, [conversation_of(s) for s in run.samples.samples]) for run in runs],
        most_turns=_most_turns,
        probabilities=PROBABILITIES,
        num_version_tints=NUM_VERSION_TINTS,
        several=len(runs) > 1,
        run_colors=RUN_COLORS,
        style=Markup(_asset("vendor/uPlot.min.css") + "\n" + _asset("report/page.css")),
        scripts=[Markup(plotting), Markup(script)],
        data=Markup(json_for_script(_data(tables, panels))),
        policy=_policy(plotting, script),
    )


def _most_turns(run: RunRecord) -> int:
    """Return which sample is open at first: the last one of those with the most turns."""
    turns = [len(sample.trajectory.steps) for sample in run.samples.samples]
    return max(range(len(turns)), key=lambda index: (turns[index], index), default=0)


def _panels(runs: Sequence[RunRecord], tables: Sequence[RunTables]) -> list[Panel]:
    panels = [
        time_panel(runs),
        use_panel(tables),
        learning_panel(tables),
        staleness_panel(runs, tables),
        life_panel(runs),
        environment_panel(runs, tables),
        decision_panel(runs),
        lengths_panel(runs),
        batches_panel(runs, tables),
        failures_panel(runs),
        configuration_panel(runs),
    ]
    return [panel for panel in panels if panel is not None]


def _data(tables: Sequence[RunTables], panels: Sequence[Panel]) -> dict[str, Any]:
    """Return what the script draws: the charts, and only the columns that they show."""
    charts = [part for panel in panels for part in panel.parts if isinstance(part, Chart)]
    wanted: dict[tuple[int, str], dict[str, Any]] = {}
    for line in (line for chart in charts for line in chart.lines):
        columns = wanted.setdefault((line.run, line.source), {})
        for name in ("time", "step", line.column, line.low, line.high):
            if name is not None:
                columns[name] = getattr(tables[line.run], line.source).get(name, [])
    return {
        "charts": [{**msgspec.to_builtins(chart), "rows": []} for chart in charts],
        "runs": [
            {source: columns for (run, source), columns in wanted.items() if run == index}
            for index in range(len(tables))
        ],
    }


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["kind"] = kind_of
    environment.filters["visible"] = visible
    environment.filters["percent_css"] = lambda share: f"{100 * share:.2f}%"
    return environment


def _policy(*scripts: str) -> str:
    """Return the content security policy: these scripts, styles in the page, and nothing from anywhere."""
    digests = (hashlib.sha256(f"{script}".encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
    )


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")
