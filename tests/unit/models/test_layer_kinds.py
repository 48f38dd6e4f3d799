from __future__ import annotations

import pytest

from forebay.models.layer_kinds import LayerKind, layer_runs, shortest_pattern

KINDS = {"l": LayerKind(window=8), "g": LayerKind(), "x": LayerKind(window=4)}


def kinds(text: str) -> list[LayerKind]:
    return [KINDS[letter] for letter in text]


@pytest.mark.parametrize(
    ("stack", "runs"),
    [
        ("g", [(0, 1, 1)]),
        ("gggg", [(0, 1, 4)]),
        ("lglglg", [(0, 2, 3)]),
        ("lglgl", [(0, 2, 2), (4, 1, 1)]),
        # Gemma 3 of 27B: 62 blocks, five local ones and a global one
        ("lllllg" * 10 + "ll", [(0, 6, 10), (60, 1, 2)]),
        # Qwen with windows in its upper layers
        ("g" * 28 + "llll", [(0, 1, 28), (28, 1, 4)]),
        ("lgx", [(0, 1, 1), (1, 1, 1), (2, 1, 1)]),
    ],
)
def test_a_stack_is_cut_into_the_longest_runs(stack: str, runs: list[tuple[int, int, int]]) -> None:
    found = layer_runs(kinds(stack))
    assert [(run.start, len(run.pattern), run.repeats) for run in found] == runs
    assert [kind for run in found for kind in run.pattern * run.repeats] == kinds(stack)


@pytest.mark.parametrize(
    ("stack", "pattern"), [("gggg", "g"), ("lglgl", "lg"), ("ggll", "ggll"), ("lllllgll", "lllllg")]
)
def test_the_shortest_pattern_of_a_stack(stack: str, pattern: str) -> None:
    assert shortest_pattern(kinds(stack)) == tuple(kinds(pattern))
