from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from forebay.report.text import json_for_script, number, percent, seconds, size, visible


def test_hostile_characters_become_signs() -> None:
    assert visible("\x1b[31mred\x07") == "␛[31mred␇"
    assert visible("a\u202eb\u2066c\u200bd\ufeff") == "a⟨202E⟩b⟨2066⟩c⟨200B⟩d⟨FEFF⟩"
    assert visible("\ud800") == "⟨D800⟩"
    assert visible("\x7f\x85\u2028") == "␡⟨0085⟩⟨2028⟩"
    assert visible("naïve 日本 ½\nnext") == "naïve 日本 ½\nnext"


@given(st.text(st.characters(codec=None), max_size=200))
def test_what_is_visible_can_be_written_as_utf8(text) -> None:
    shown = visible(text)
    shown.encode("utf-8")
    assert "\x1b" not in shown


@given(st.text(st.characters(codec="utf-8"), max_size=100))
def test_json_survives_a_script_element(text) -> None:
    written = json_for_script({"text": text})
    assert json.loads(written) == {"text": text}
    assert not set(written) & set("<>&\u2028\u2029")


def test_figures_are_written_with_their_units() -> None:
    assert [percent(v) for v in (0.0, 0.00001, 0.5, 1.0)] == ["0.0 %", "0.00 %", "50.0 %", "100.0 %"]
    assert [seconds(v) for v in (0.0, 0.05, 0.1, 9.99, 59.9)] == [
        "0 s",
        "50 ms",
        "0.10 s",
        "9.99 s",
        "59.9 s",
    ]
    assert [seconds(v) for v in (60.0, 3600.0, 90061.0)] == ["1 min 0 s", "1 h 0 min", "25 h 1 min"]
    assert [number(v) for v in (0.0001, 12.345, 123.4, 1e6, float("inf"))] == [
        "1.0e-04",
        "12.3",
        "123",
        "1,000,000",
        "inf",
    ]
    assert [size(v) for v in (0, 1023, 1536, 2**40)] == ["0 B", "1023 B", "1.5 KiB", "1.0 TiB"]
    assert {write(None) for write in (percent, seconds, number, size)} == {"not recorded"}
