from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.envs.adapters.spaces import NotInSpaceError, readable, space_text
from forebay.errors import ConfigError

gymnasium = pytest.importorskip("gymnasium")
spaces = gymnasium.spaces

READABLE = {
    "discrete": spaces.Discrete(5),
    "discrete from -2": spaces.Discrete(4, start=-2),
    "multi-discrete": spaces.MultiDiscrete([3, 2, 7]),
    "grid of choices": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "bits": spaces.MultiBinary(4),
    "bit grid": spaces.MultiBinary([2, 3]),
    "box": spaces.Box(-1.5, 2.5, (3,)),
    "flat box": spaces.Box(0, 1, (2, 2), dtype=np.float64),
    "open box": spaces.Box(-np.inf, np.inf, (2,)),
    "whole box": spaces.Box(-128, 127, (2,), dtype=np.int8),
    "scalar box": spaces.Box(0.0, 1.0, ()),
    "text": spaces.Text(8),
    "tuple": spaces.Tuple((spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2))),
    "dict": spaces.Dict(b=spaces.Discrete(3), a=spaces.Box(0, 1, (2,))),
    "nested": spaces.Dict(
        position=spaces.Tuple((spaces.Discrete(4), spaces.MultiBinary(2))),
        word=spaces.Text(3, charset="abc"),
        inner=spaces.Dict(deep=spaces.Tuple((spaces.Discrete(2),))),
    ),
}
REFUSED = {
    "graph": spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
    "sequence": spaces.Sequence(spaces.Discrete(3)),
    "one of": spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3))),
    "image": spaces.Box(0, 255, (210, 160, 3), dtype=np.uint8),
    "empty tuple": spaces.Tuple(()),
    "empty dict": spaces.Dict({}),
    "image in a dict": spaces.Dict(image=spaces.Box(0, 255, (64, 64), dtype=np.uint8)),
}


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(np.all(left == right))


@pytest.mark.parametrize("name", READABLE)
def test_what_is_written_is_read_back(name: str) -> None:
    space = READABLE[name]
    text = readable(space_text(space, digits=17))
    space.seed(3)
    for _ in range(25):
        member = space.sample()
        back = text.read(text.write(member))
        assert space.contains(back), text.write(member)
        assert same(member, back)


@given(name=st.sampled_from(sorted(READABLE)), said=st.text(max_size=40))
def test_any_text_is_a_member_or_refused(name: str, said: str) -> None:
    space = READABLE[name]
    text = readable(space_text(space))
    try:
        value = text.read(said)
    except NotInSpaceError as error:
        assert str(error)
    else:
        assert space.contains(value)


NUMBER_LIKE = st.text(alphabet="0123456789+-.eE,:() \tabinf_", max_size=24)


@given(name=st.sampled_from(sorted(READABLE)), said=NUMBER_LIKE)
def test_text_that_looks_like_numbers_is_a_member_or_refused(name: str, said: str) -> None:
    space = READABLE[name]
    with contextlib.suppress(NotInSpaceError):
        assert space.contains(readable(space_text(space)).read(said))


@pytest.mark.parametrize("name", REFUSED)
def test_other_spaces_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        space_text(REFUSED[name])
    kind = {"image in a dict": "Box"}.get(name, type(REFUSED[name]).__name__)
    assert f"{kind}(" in str(caught.value)


@pytest.mark.parametrize(
    ("space", "member", "written"),
    [
        (spaces.Discrete(5), np.int64(3), "3"),
        (spaces.Box(-9, 9, (3,)), np.array([0.25, -1.5, 1 / 3], np.float32), "0.25 -1.5 0.3333"),
        (spaces.Tuple((spaces.Discrete(32), spaces.Discrete(11))), (14, 10), "14, 10"),
        (READABLE["dict"], {"a": np.array([0.5, 1.0]), "b": 2}, "b: 2, a: 0.5 1"),
        (
            READABLE["nested"],
            {"position": (1, np.array([0, 1])), "word": "ab", "inner": {"deep": (1,)}},
            "position: (1, 0 1), word: ab, inner: (deep: (1))",
        ),
    ],
)
def test_how_members_are_written(space: Any, member: Any, written: str) -> None:
    assert space_text(space).write(member) == written


def test_parts_and_choices_can_have_names() -> None:
    hand = spaces.Tuple((spaces.Discrete(32), spaces.Discrete(2)))
    assert space_text(hand, names=["hand", "ace"]).write((14, 0)) == "hand: 14, ace: 0"
    choice = space_text(spaces.Discrete(2, start=1), names=["stick", "Hit"])
    assert (choice.read(" STICK "), choice.read("hit"), choice.read("2")) == (1, 2, 2)
    assert choice.write(2) == "Hit"
    assert choice.hint == "stick or Hit"


def test_small_choices_can_be_one_character() -> None:
    hand = spaces.Tuple((spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(500)))
    assert space_text(hand, short=True).write((14, 10, 123)) == "e, a, 123"
    assert space_text(spaces.Discrete(36, start=-1), short=True).write(34) == "z"


@pytest.mark.parametrize("said", ["0", "3", "hi", "", "stick hit", "1.0", "٢", "1_0", "stick\nhit", "9" * 30])
def test_a_choice_is_one_name_or_number_and_nothing_else(said: str) -> None:
    choice = space_text(spaces.Discrete(2, start=1), names=["stick", "hit"])
    with pytest.raises(NotInSpaceError, match="stick or hit"):
        choice.read(said)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (spaces.Box(0, 1, (2,)), "0.5"),
        (spaces.Box(0, 1, (2,)), "0.5 1.5"),
        (spaces.Box(0, 1, (2,)), "0.5 nan"),
        (spaces.Box(-np.inf, np.inf, (1,)), "inf"),
        (spaces.Box(-128, 127, (1,), dtype=np.int8), "300"),
        (spaces.Box(0, 255, (1,), dtype=np.uint8), "-1"),
        (spaces.MultiDiscrete([3, 3]), "1, 2"),
        (spaces.MultiDiscrete([3, 3]), "1 3"),
        (READABLE["dict"], "a: 0.5 1"),
        (READABLE["dict"], "a: 0 1, a: 0 1"),
        (READABLE["dict"], "a: 0 1, b: 1, c: 1"),
        (spaces.Tuple((spaces.Tuple((spaces.Discrete(2),)),)), "1"),
    ],
)
def test_near_misses_are_refused(space: Any, said: str) -> None:
    with pytest.raises(NotInSpaceError):
        space_text(space).read(said)


def test_keys_may_come_in_any_order() -> None:
    assert same(space_text(READABLE["dict"]).read("b: 2, a: 0.5 1"), {"a": np.array([0.5, 1.0]), "b": 2})


def test_text_that_may_hold_separators_is_refused_inside_another_space() -> None:
    with pytest.raises(ConfigError, match="separates parts"):
        readable(space_text(spaces.Tuple((spaces.Text(5, charset="ab, "), spaces.Discrete(2)))))
    with pytest.raises(ConfigError, match="a key may not hold"):
        readable(space_text(spaces.Dict({"a b": spaces.Discrete(2)})))


@pytest.mark.parametrize("names", [["one"], ["one", "ONE"]])
def test_names_have_to_fit(names: list[str]) -> None:
    with pytest.raises(ConfigError, match="names"):
        space_text(spaces.Discrete(2), names=names)
