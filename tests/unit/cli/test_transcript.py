from __future__ import annotations

import asyncio
import io
import math
from typing import Any

from rich.console import Console

from forebay.cli.transcript import (
    Answered,
    Event,
    Posed,
    Said,
    Screen,
    WatchedEnvironment,
    WatchedGenerator,
    as_json,
    tint,
    visible,
)
from forebay.envs.protocol import Action, Message
from tests.unit.actors.support import CHAT, ScriptedGenerator, calculator_task
from tests.unit.actors.support import kind as calculator
from tests.unit.cli.test_person import request

SAID = Said("12", ("1", "2", "<end>"), (9, 10, 2), (-0.01, math.log(0.05), 0.0), "stop", 0.02, 1.5)


def shown(*events: Event, person: bool = False, typed: bool = False) -> str:
    console = Console(file=io.StringIO(), width=200, color_system=None, soft_wrap=True)
    screen = Screen(console, person=person, typed=typed)
    for event in events:
        screen.show(event)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_an_environment_and_a_generator_are_heard_and_unchanged() -> None:
    async def main() -> tuple[list[Event], Any]:
        events: list[Event] = []
        environment = WatchedEnvironment(calculator().make(0), events.append)
        await environment.reset(calculator_task("1+2"))
        completion = await WatchedGenerator(ScriptedGenerator(lambda _: "#3"), CHAT, events.append).generate(
            request()
        )
        outcome = await environment.step(Action(text="#3"))
        await environment.close()
        return events, (CHAT.decode(completion.tokens), outcome.reward)

    (posed, said, answered), results = asyncio.run(main())
    assert results == ("#3<end>", 1.0)
    assert isinstance(posed, Posed) and posed.messages == (Message("user", "1+2"),)
    assert isinstance(said, Said) and said.tokens == ("#", "3", "<end>") and said.logprobs == (-0.5,) * 3
    assert isinstance(answered, Answered) and (answered.reward, answered.terminated) == (1.0, True)


def test_tokens_are_shown_with_their_logprobs_and_times() -> None:
    text = shown(Posed((Message("user", "3*4"),), 0.1), SAID, Answered((), 0.5, True, False, {}, 0.25))
    lines = [line.strip() for line in text.splitlines()]
    assert lines == [
        "user: 3*4",
        "assistant: 12<end>",
        "1 -0.01  2 -3.00  <end> 0.00",
        "3 tokens, mean logprob -1.00; waited 20 ms, generated 1.50 s",
        "reward 0.5; environment 250 ms",
    ]


def test_a_person_is_not_told_what_they_typed() -> None:
    assert shown(SAID, person=True, typed=True) == ""
    assert shown(SAID, person=True) == "12\n"


def test_likely_and_unlikely_tokens_look_different() -> None:
    tints = [tint(math.log(p)) for p in (1.0, 0.9, 0.5, 0.1, 0.01)]
    assert tints == ["green", "green", "yellow", "dark_orange", "bold red"]
    colored = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=200)
    Screen(colored, person=False, typed=False).show(SAID)
    assert "\x1b[32m1" in colored.file.getvalue()  # type: ignore[attr-defined]


def test_no_text_can_steer_the_terminal_or_be_taken_for_markup() -> None:
    hostile = "\x1b[2J\x00[bold]x[/bold]\u202e\n2"
    assert visible(hostile) == "\\x1b[2J\\x00[bold]x[/bold]\\u202e\n2"
    text = shown(Posed((Message("user", hostile),), 0.0))
    assert "\x1b" not in text and "[bold]x[/bold]" in text


def test_a_player_who_left_has_no_reward() -> None:
    entry = as_json(calculator_task("1+2"), "person", [SAID], None)
    assert (entry["reward"], entry["finish"], entry["task_id"]) == (None, "left", "t")
    assert entry["events"][0]["token_ids"] == (9, 10, 2)
