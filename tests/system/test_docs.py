"""Every command and snippet of the tutorial and the how-to pages, run in order in an empty directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.pages import ROOT, SHELLS, blocks, run_block, short_examples

PAGES = [ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trained")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_runs(page: Path, tmp_path: Path, trained: Path) -> None:
    short_examples(tmp_path)
    for block in blocks(page):
        if block.word != "not run":
            run_block(block, tmp_path, trained)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_is_not_run_says_why(page: Path) -> None:
    skipped = [block for block in blocks(page) if block.word == "not run"]
    assert [f"{block.page}:{block.line}" for block in skipped if len(block.value.split()) < 3] == []


def test_a_failing_command_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```bash\nmake no-such-thing\necho seen\nfalse\necho unseen\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md:1 failed(.|\n)*seen"):
        run_block(blocks(page)[0], tmp_path)


def test_a_page_that_begins_with_a_known_training_takes_a_copy_of_what_that_left(tmp_path: Path) -> None:
    page, trained, workplace = tmp_path / "page.md", tmp_path / "trained", tmp_path / "workplace"
    page.write_text("```bash\nforebay train examples/absent.toml\ncat runs/a/summary.json\n```\n")
    workplace.mkdir()
    (trained / "absent.toml" / "a").mkdir(parents=True)
    (trained / "absent.toml" / "a" / "summary.json").write_text("{}")
    (block,) = blocks(page)
    run_block(block, workplace, trained)
    # The second time it stands where a run is already, and so the command itself is run, and fails.
    with pytest.raises(AssertionError, match=r"examples/absent\.toml"):
        run_block(block, workplace, trained)


def test_directives_reach_their_block(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- file: a/b.txt -->\n```text\nhello\n```\n\n"
        "<!-- not run: no such machine -->\n```bash\nfalse\n```\n"
    )
    file, other = blocks(page)
    run_block(file, tmp_path)
    assert (tmp_path / "a" / "b.txt").read_text() == "hello\n"
    assert (other.word, other.value, other.language in SHELLS) == ("not run", "no such machine", True)
