from __future__ import annotations

import pytest
from pydantic import ValidationError

from forebay.generation.settings import GeneratorSettings


def test_default_windows_double_up_to_the_context() -> None:
    assert GeneratorSettings(context=700).windows == (128, 256, 512, 700)
    assert GeneratorSettings(context=64).windows == (64,)


def test_given_windows_always_end_with_the_context() -> None:
    assert GeneratorSettings(context=100, kv_windows=(32, 100, 500)).windows == (32, 100)


def test_few_sequences_run_over_a_quarter_of_the_slots() -> None:
    assert GeneratorSettings(slots=32).decode_rows == (8, 32)
    assert GeneratorSettings(slots=2).decode_rows == (1, 2)
    assert GeneratorSettings(slots=1).decode_rows == (1,)


def test_chunks_fit_the_context() -> None:
    assert GeneratorSettings(context=64, prefill_chunks=(16, 64, 256)).chunks == (16,)
    assert GeneratorSettings(context=8, prefill_chunks=(16,)).chunks == (8,)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prefill_chunks": (64, 16)}, "ascending"),
        ({"kv_windows": (64,), "context": 128}, "context = 128"),
        ({"slots": 0}, "greater than or equal to 1"),
        ({"slot": 4}, "Extra inputs"),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        GeneratorSettings.model_validate(fields)
