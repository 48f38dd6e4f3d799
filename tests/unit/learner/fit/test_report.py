from __future__ import annotations

from forebay.learner.fit.chips import parse_topology
from forebay.learner.fit.report import make_report, to_text
from forebay.learner.fit.search import Outcome, Wanted, rank_candidates
from forebay.learner.fit.shapes import load_model
from forebay.learner.fit.verdict import Verdict


def test_a_report_says_what_the_compiler_refused() -> None:
    config, topology = load_model("llama3-8b"), parse_topology("v5e:4x4")
    candidate = rank_candidates(config, topology, Wanted(4096))[-1]
    verdict = Verdict("compiler", candidate.memory, topology.chip.memory_bytes, None, 12.5, "OUT\nof memory")
    outcome = Outcome(candidate, verdict, ((candidate, verdict),))
    report = make_report("llama3-8b", config, topology, outcome)
    assert not report.fits
    assert report.tried[0].refusal == "OUT"
    assert report.compile_s == 12.5
    assert report.collectives == candidate.work.collectives, "those of arithmetic, as there are no others"
    assert report.collectives_source == "analytic"
    assert report.cost_per_step is None
    text = to_text(report)
    assert "does NOT fit with 10% free, by the compiler" in text
