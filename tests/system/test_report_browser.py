"""The report as a browser shows it: nothing complains, nothing is fetched, everything is drawn and fits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.report import load_run, render_page
from tests.system.browser import CHROMIUM, Page, browser
from tests.unit.report.runs import line, make_run, make_trajectory, new_values

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")

# How many charts have lines: a canvas of which some pixel is neither the grid's color nor empty.
DRAWN = """[...document.querySelectorAll(".plot canvas")].filter((canvas) => {
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  for (let i = 0; i < pixels.length; i += 4) {
    const [r, g, b, a] = pixels.slice(i, i + 4);
    if (a === 255 && Math.max(r, g, b) - Math.min(r, g, b) > 60) return true;
  }
  return false;
}).length"""
WIDTHS = "[document.documentElement.scrollWidth, window.innerWidth]"
OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
HOSTILE = "<img src=x onerror=alert(1)></script><script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    lines = [line(3.0, 1.0 + i % 3, reward=0.1 * i, **new_values()) for i in range(8)]
    scores = [
        {"step": s, "reward": 0.1 * s, "reward_low": 0.1 * s - 0.1, "reward_high": 0.1 * s + 0.1}
        for s in (1, 8)
    ]
    trajectories = {
        4: [make_trajectory(reward=None)],
        8: [make_trajectory("t2", versions=(3, 6), told=HOSTILE)],
    }
    made = make_run(
        folder / "alpha",
        lines,
        evaluations=scores,
        actors=[{"live": 9}] * 6,
        trajectories=trajectories,
        summary=True,
    )
    alpha, beta = load_run(made), load_run(make_run(folder / "beta", lines[:4]))
    dead = load_run(make_run(folder / "dead", config={"run": {"name": HOSTILE}}))
    written = {"one": [alpha], "two": [beta, alpha], "dead": [dead]}
    for name, runs in written.items():
        (folder / f"{name}.html").write_text(render_page(runs), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in written}


def look(then: Callable[[Page], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with browser() as page:
            return await then(page)

    return asyncio.run(run())


@pytest.mark.parametrize("name", ["one", "two", "dead"])
def test_pages_are_drawn_fit_a_phone_and_fetch_nothing(pages, name) -> None:
    async def visit(page: Page) -> None:
        for width, dark in ((1280, False), (360, False), (1280, True)):
            await page.open(pages[name], width=width, dark=dark)
            scroll_width, window_width = await page.evaluate(WIDTHS)
            assert scroll_width <= window_width == width
            charts = await page.evaluate("document.querySelectorAll('.plot').length")
            assert await page.evaluate(DRAWN) == charts
            assert (charts > 10) == (name != "dead")
        assert page.errors == []
        assert set(page.requests) == {pages[name].as_uri()}
        assert await page.evaluate("document.title") != "taken"

    look(visit)


def test_toggles_change_what_is_tinted_and_drawn(pages) -> None:
    token = ".said i.v0"
    style = f"getComputedStyle(document.querySelector('{token}'))"

    async def visit(page: Page) -> None:
        await page.open(pages["one"], width=1280)
        await page.evaluate(OPEN_ALL)
        by_probability = await page.evaluate(f"{style}.backgroundColor")
        await page.evaluate("document.querySelector('[name=tint][value=version]').click()")
        by_version = await page.evaluate(f"{style}.backgroundColor")
        await page.evaluate("document.querySelector('[name=tint][value=none]').click()")
        assert len({by_probability, by_version, await page.evaluate(f"{style}.backgroundColor")}) == 3
        marked = "getComputedStyle(document.querySelector('.said i.u')).textDecorationLine"
        assert await page.evaluate(marked) == "underline"
        await page.evaluate("document.querySelector('[name=marks]').click()")
        assert await page.evaluate(marked) == "none"
        await page.evaluate(f"document.querySelector('{token}').click()")
        told = await page.evaluate("document.getElementById('token').textContent")
        assert "probability" in told
        assert "version" in told
        label = "document.querySelector('.u-legend .u-label').textContent"
        assert await page.evaluate(label) == "time"
        await page.evaluate("document.querySelector('[name=x][value=step]').click()")
        assert await page.evaluate(label) == "step"
        assert page.errors == []

    look(visit)


def test_an_interval_is_told_beside_its_value_and_every_cell_of_a_legend_has_a_name(pages) -> None:
    rows = "[...document.querySelectorAll('[data-chart=reward] .u-series')]"
    names = f"{rows}.filter((row) => row.checkVisibility()).map((row) => row.querySelector('th').textContent)"
    value = f"{rows}.find((row) => row.textContent.startsWith('held')).querySelector('.u-value').textContent"
    labels = "[...document.querySelectorAll('.u-legend th')].map((cell) => cell.textContent)"
    over = "document.querySelector('[data-chart=reward] .u-over')"
    corner = f"(() => {{ const box = {over}.getBoundingClientRect(); return [box.right, box.top]; }})()"

    async def visit(page: Page) -> None:
        for width in (360, 1280):
            await page.open(pages["one"], width=width)
            assert await page.evaluate(names) == ["time", "training batches", "held-out tasks, 95 % interval"]
            assert not {"", "Value"} & set(await page.evaluate(labels))
        await page.evaluate(f"{over}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        right, top = await page.evaluate(corner)
        # The last batch is nearest; the last evaluation was at another time.
        await page.send("Input.dispatchMouseEvent", type="mouseMoved", x=right - 2, y=top + 9)
        async with asyncio.timeout(60):
            while (said := await page.evaluate(value)) in ("–", "--"):
                await asyncio.sleep(0.02)
        assert said == "0.8 (0.7 to 0.9)"

    look(visit)


def test_tables_scroll_inside_themselves_on_a_phone(pages) -> None:
    wider = (
        "[...document.querySelectorAll('.scroll')].filter((s) => s.scrollWidth > s.clientWidth + 1).length"
    )

    async def visit(page: Page) -> None:
        await page.open(pages["two"], width=360)
        await page.evaluate(OPEN_ALL)
        assert await page.evaluate(wider) >= 1
        scroll_width, window_width = await page.evaluate(WIDTHS)
        assert scroll_width <= window_width

    look(visit)


def test_text_is_legible_on_its_ground(pages) -> None:
    """Contrast of at least 4.5 between every text and the nearest ground that is painted behind it."""
    contrast = """[...document.querySelectorAll("body *")]
      .filter((one) => one.checkVisibility() && !one.closest("svg, .uplot, noscript"))
      .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
      .map((one) => {
        const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
        const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
          .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
          .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        let ground = one;
        let color = [0, 0, 0, 0];
        while (ground && (color[3] ?? 1) < 1) {
          color = parse(getComputedStyle(ground).backgroundColor);
          ground = ground.parentElement;
        }
        const [a, b] = [light(color), light(parse(getComputedStyle(one).color))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        return [ratio, one.className + ": " + one.textContent.slice(0, 40)];
      })
      .filter(([ratio]) => ratio < 4.5)"""

    async def visit(page: Page) -> None:
        for dark in (False, True):
            await page.open(pages["two"], width=1280, dark=dark)
            await page.evaluate(OPEN_ALL)
            for tint in ("logprob", "version"):
                await page.evaluate(f"document.querySelector('[name=tint][value={tint}]').click()")
                assert await page.evaluate(contrast) == [], f"dark {dark}"
        # What the look would find, if there were something.
        await page.evaluate("document.querySelector('h1').style.color = '#405060'")
        assert len(await page.evaluate(contrast)) == 1

    look(visit)


def test_the_page_can_be_printed(pages, tmp_path) -> None:
    async def visit(page: Page) -> None:
        await page.open(pages["one"], width=1280, dark=True)
        await page.pdf(tmp_path / "page.pdf")
        assert page.errors == []

    look(visit)
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF-")
