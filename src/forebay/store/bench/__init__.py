"""The store benchmark: engines, and what the machine can do at all, measured alike in one run."""

from forebay.store.bench.layouts import ENGINES
from forebay.store.bench.report import Demand, Plan, Report, judge, run_bench, to_json
from forebay.store.bench.tables import markdown

__all__ = ["ENGINES", "Demand", "Plan", "Report", "judge", "markdown", "run_bench", "to_json"]
