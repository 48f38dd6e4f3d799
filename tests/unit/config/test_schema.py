from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from forebay.config import RunConfig
from forebay.config.schema import json_schema
from forebay.config.source import known_keys
from tests.house.sources import ROOT

jsonschema = pytest.importorskip("jsonschema")
SCHEMA = json_schema()
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))


def faults(tree: dict[str, Any]) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(tree)]


def entry(*key: str) -> dict[str, Any]:
    """Return what the schema says of a key."""
    table: dict[str, Any] = SCHEMA
    for name in key:
        if "$ref" in table:
            table = SCHEMA["$defs"][table["$ref"].rpartition("/")[2]]
        table = table.get("properties", {}).get(name) or table["additionalProperties"]
    return table


def test_it_is_a_schema_of_the_2020_draft_and_is_json() -> None:
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    json.dumps(SCHEMA, allow_nan=False)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_satisfy_it(example: Path) -> None:
    assert faults(tomllib.loads(example.read_text())) == []


@pytest.mark.parametrize(
    "tree",
    [
        {"learner": {"stps": 3}},
        {"learner": {"steps": "many"}},
        {"learner": {"steps": 0}},
        {"staleness": {"on_stale": "discard"}},
        {"environment": {}},
        {"environment": {"a/b": {}}},
        {"leaner": {}},
    ],
)
def test_what_the_program_refuses_does_not(tree: dict[str, Any]) -> None:
    assert len(faults(tree)) >= 1


def test_a_key_has_its_meaning_default_limits_and_unit() -> None:
    assert entry("learner", "no_progress_s") == {
        "default": 600.0,
        "description": "Longest time without a trained batch.",
        "exclusiveMinimum": 0,
        "title": "No Progress S",
        "type": "number",
        "x-unit": "seconds",
    }
    assert entry("store", "capacity_bytes")["x-unit"] == "bytes"
    assert "x-unit" not in entry("learner", "steps")


def test_every_key_is_described() -> None:
    leaves = [
        key for key in known_keys(RunConfig) if "description" not in entry(*key) and "$ref" not in entry(*key)
    ]
    assert leaves == []
