"""The reference pages name everything that scripts may rely on."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from forebay import errors
from forebay.batching.loss_mask import Reason
from forebay.generation import http_records
from forebay.objectives.inputs import Diagnostics
from forebay.store.protocol import StoreStats
from forebay.telemetry.spans import STATES
from forebay.telemetry.summary import RunSummary
from forebay.wire import _Header, _SequenceHeader
from tests.house.sources import ROOT

PAGES = ROOT / "docs" / "reference"
ERRORS = [
    error
    for _, error in inspect.getmembers(errors, inspect.isclass)
    if issubclass(error, errors.ForebayError) and error is not errors.ForebayError
]
STEP_KEYS = {field.name for field in dataclasses.fields(Diagnostics)}
ROUTES = {value for name, value in vars(http_records).items() if name.endswith("_PATH")}
EXTENSIONS = {
    *http_records.RequestExtension.__struct_fields__,
    *http_records.ResponseExtension.__struct_fields__,
}


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("summary.md", set(RunSummary.__struct_fields__)),
        ("metrics.md", STEP_KEYS | {f"time.{state}_s" for state in STATES}),
        ("metrics.md", {f"masked.{reason.name.lower()}" for reason in Reason} - {"masked.fresh"}),
        ("store.md", set(StoreStats.__struct_fields__) - {"counters"}),
        ("wire.md", {*_Header.__struct_fields__, *_SequenceHeader.__struct_fields__}),
        ("generator-api.md", ROUTES),
    ],
)
def test_page_names_every_key(page: str, names: set[str]) -> None:
    text = (PAGES / page).read_text()
    assert sorted(name for name in names if f"`{name}`" not in text) == []


def test_page_names_the_extension_of_the_generator() -> None:
    text = (PAGES / "generator-api.md").read_text()
    assert sorted(name for name in EXTENSIONS if f"`forebay.{name}`" not in text) == []


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_page_names_the_exit_code_of_every_error(error: type[errors.ForebayError]) -> None:
    rows = (PAGES / "exit-codes.md").read_text().splitlines()
    row = next(row for row in rows if f"`{error.__name__}`" in row)
    assert row.split("|")[-2].strip() == str(error.exit_code)
