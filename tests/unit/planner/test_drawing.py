"""The picture of a plan, read back as the document that it is."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from forebay.planner.drawing import draw_plan
from forebay.planner.plan import Wanted, plan
from forebay.planner.scenario import Scenario
from tests.unit.planner.profiles import profile

_SVG = "{http://www.w3.org/2000/svg}"


def test_every_cell_is_shown_and_the_plan_is_framed() -> None:
    found = plan(profile(), Scenario(groups=4, group_size=2, steps=30), Wanted())
    root = ElementTree.fromstring(draw_plan(found, 0.97))
    texts = ["".join(text.itertext()) for text in root.iter(f"{_SVG}text")]
    shown = [f"{100 * cell.busy:.1f}" + (" ✓" if cell.busy >= 0.97 else "") for cell in found.cells]
    assert [text for text in texts if text in shown] == shown
    assert {str(cell.max_staleness) for cell in found.cells} <= set(texts)
    assert {str(cell.episodes_in_flight) for cell in found.cells} <= set(texts)
    frames = [box for box in root.iter(f"{_SVG}rect") if box.get("fill") == "none"]
    assert len(frames) == 1
    rows = sorted({cell.max_staleness for cell in found.cells}, reverse=True)
    assert frames[0].get("y") == str(76 + 44 * rows.index(found.max_staleness) + 1)
