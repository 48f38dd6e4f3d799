"""The report: one self-contained page about a run, or about two of them side by side; without JAX."""

from forebay.report.load import RunRecord, find_runs, load_run
from forebay.report.page import render_page
from forebay.report.verdicts import verdict_of

__all__ = ["RunRecord", "find_runs", "load_run", "render_page", "verdict_of"]
