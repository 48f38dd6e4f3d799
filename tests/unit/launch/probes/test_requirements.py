from __future__ import annotations

import pytest

from forebay.launch.probes.requirements import Requirement, is_within, parse_requirement, unmet


@pytest.mark.parametrize(
    ("line", "requirement"),
    [
        ("lmdb>=1.7", Requirement("lmdb", ">=1.7", "")),
        ('gguf>=0.17; extra == "gguf"', Requirement("gguf", ">=0.17", "gguf")),
        ("reasoning-gym; extra == 'envs-rg'", Requirement("reasoning-gym", "", "envs-rg")),
        ('forebay[learner]; extra == "cuda"', Requirement("forebay", "", "cuda")),
        ('tomli>=2; python_version < "3.11"', Requirement("tomli", ">=2", "")),
    ],
)
def test_a_line_of_the_metadata_is_read(line: str, requirement: Requirement) -> None:
    assert parse_requirement(line) == requirement


@pytest.mark.parametrize(
    ("version", "bounds", "within"),
    [
        ("1.10", ">=1.9", True),
        ("1.9", ">=1.10", False),
        ("2.0.0", ">=2", True),
        ("0.11.0", "<0.11,>=0.10.2", False),
        ("0.10.2.dev3", "<0.11,>=0.10.2", True),
        ("3.0.0rc1", ">=3", True),
        ("7", "", True),
        (None, "", False),
    ],
)
def test_bounds(version: str | None, bounds: str, within: bool) -> None:
    assert is_within(version, bounds) is within


def test_what_is_missing_or_too_old_is_named_with_what_is_there() -> None:
    wanted = [
        Requirement("no-such-package", ">=1", ""),
        Requirement("lmdb", ">=999", ""),
        parse_requirement("numpy"),
    ]
    missing = unmet(wanted)
    assert missing[0] == "no-such-package missing (needs >=1)"
    assert missing[1].startswith("lmdb ") and missing[1].endswith("(needs >=999)")
    assert len(missing) == 2
