from __future__ import annotations

import msgspec
import pytest

from forebay.report.conversation import conversation_of, tint_of
from forebay.report.samples import Message, Sample, Token
from tests.unit.report.runs import make_trajectory


def sample(*tokens: Token, told: str = "") -> Sample:
    trajectory = make_trajectory()
    messages = (
        Message(speaker="context", text=told),
        Message(speaker="policy", tokens=tokens, step=0, record=trajectory.steps[0]),
    )
    return Sample(version=9, trajectory=trajectory, branches=(messages,))


def token(text: str, logprob: float = -0.5, version: int = 3, reason: str = "fresh") -> Token:
    return Token(text=text, logprob=logprob, version=version, reason=reason)


@pytest.mark.parametrize(
    ("probability_logprob", "tint"),
    [
        (0.0005, 0),
        (-0.105, 0),
        (-0.106, 1),
        (-0.693, 1),
        (-0.694, 2),
        (-1.61, 3),
        (-3.0, 4),
        (-4.7, 5),
        (-99.0, 5),
    ],
)
def test_tints_grow_as_tokens_get_less_probable(probability_logprob, tint) -> None:
    assert tint_of(probability_logprob) == tint


def test_a_token_carries_what_is_known_about_it() -> None:
    talk = conversation_of(sample(token("4"), token("2", -2.0, 4, "stale")))
    html = talk.branches[0].bubbles[1].html
    assert html == (
        '<i class="l1 v1" data-p="-0.500" data-v="3">4</i>'
        '<i class="l3 v0 u" data-p="-2.000" data-v="4" data-r="stale">2</i>'
    )
    assert talk.versions == (("version 4", 0), ("version 3", 1))


def test_hostile_text_stays_text() -> None:
    attack = "</script><script>alert(1)</script>\x1b[31m\u202e&amp;"
    talk = conversation_of(sample(token(attack), told=attack))
    for bubble in talk.branches[0].bubbles:
        assert "<script" not in bubble.html
        assert "&lt;script&gt;" in bubble.html
        assert not {"\x1b", "\u202e"} & set(bubble.html)


def test_tokens_without_text_and_line_feeds_can_be_seen() -> None:
    html = conversation_of(sample(token(""), token("\n"))).branches[0].bubbles[1].html
    assert ">·</i>" in html
    assert ">↵\n</i>" in html


def test_markers_of_the_template_are_dimmed() -> None:
    html = conversation_of(sample(told="<user>2 < 3 > 1<end>")).branches[0].bubbles[0].html
    assert html == (
        '<span class="marker">&lt;user&gt;</span>2 &lt; 3 &gt; 1<span class="marker">&lt;end&gt;</span>'
    )


def test_facts_timings_and_what_is_left_out_are_said() -> None:
    talk = conversation_of(msgspec.structs.replace(sample(token("4")), num_cut_tokens=1234))
    assert talk.title == "Trained in step 9"
    assert dict(talk.facts)["reward"] == "1"
    assert talk.branches[0].bubbles[1].footer == (
        "waited 0.50 s · decoded in 0.25 s · environment answered in 1.50 s · reward 1 · stopped by stop"
    )
    assert [round(segment.share, 3) for segment in talk.timeline] == [0.222, 0.111, 0.667]
    assert talk.note == "1,234 more tokens are not shown."


def test_branches_are_numbered_if_there_are_several() -> None:
    one = sample(token("4"))
    assert [branch.title for branch in conversation_of(one).branches] == [""]
    both = msgspec.structs.replace(one, branches=one.branches * 2)
    assert [branch.title for branch in conversation_of(both).branches] == ["Branch 1 of 2", "Branch 2 of 2"]
