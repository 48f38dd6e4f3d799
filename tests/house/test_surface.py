from __future__ import annotations

from tests.house import sources, surface

REMEDY = "run `make freeze` if the change is meant, and name it in CHANGELOG.md"


def test_public_names_are_the_ones_written_down() -> None:
    assert surface.public_names() == surface.PUBLIC_NAMES.read_text(), REMEDY


def test_commands_are_the_ones_written_down() -> None:
    assert surface.commands() == surface.COMMANDS.read_text(), REMEDY


def test_readme_shows_the_tree_and_the_source_as_they_are() -> None:
    text = surface.README.read_text()
    assert "<!-- tree: src/forebay -->" in text
    assert surface.refreshed(text) == text, "run `make freeze`"


def test_every_file_has_a_line_in_the_tree() -> None:
    bare = [line for line in surface.tree().splitlines()[1:] if len(line.split()) < 3]
    assert bare == [], "the first line of a module's docstring is its line in the README"


def test_refreshing_replaces_a_stale_tree_and_keeps_the_rest() -> None:
    page = "before\n<!-- tree: src/forebay -->\n```text\nlast month\n```\nafter\n"
    fresh = surface.refreshed(page)
    assert "last month" not in fresh
    assert fresh.startswith("before\n")
    assert fresh.endswith("```\nafter\n")
    assert "  clock.py" in fresh


def test_an_excerpt_is_the_source_of_the_named_definition() -> None:
    text = sources.find(sources.PACKAGE / "clock.py", "ManualClock.advance")
    assert text.startswith("def advance(self, duration_s: float) -> None:")
    assert text.endswith("self._now_s += duration_s")
