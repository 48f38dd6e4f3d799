from __future__ import annotations

from pathlib import Path

from forebay.learner.fit.estimates import Estimate, Rates, read_estimate

# A loop of five trips over a product and a kernel, a branch, and a fusion whose insides are not counted.
TEXT = """\
HloModule jit_step, is_scheduled=true

%body (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %product = f32[8]{0} fusion(%a), kind=kOutput, calls=%inside, backend_config={"estimated_cycles":"100"}
  %mixed = f32[8]{0} custom-call(%a), custom_call_target="tpu_custom_call", \
backend_config={"custom_call_config":{"cost_estimate":{"flops":"4000","transcendentals":"1","bytes_accessed":"60"}}}
}

%condition (state: (s32[], f32[8])) -> pred[] {
  %limit = s32[]{:T(128)} constant(5)
  ROOT %less = pred[] compare(%counter, %limit), direction=LT
}

%inside (a: f32[8]) -> f32[8] {
  %copied = f32[8]{0} copy(%a), backend_config={"estimated_cycles":"999999"}
}

%short (a: f32[8]) -> f32[8] {
  %one = f32[8]{0} copy(%a), backend_config={"estimated_cycles":"3"}
}

%long (a: f32[8]) -> f32[8] {
  %two = f32[8]{0} copy(%a), backend_config={"estimated_cycles":"20"}
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %repeated = (s32[], f32[8]) while(%tuple), condition=%condition, body=%body
  %chosen = f32[8]{0} conditional(%which, %a, %a), branch_computations={%short, %long}
  %moved = f32[8]{0} copy(%a), backend_config={"estimated_cycles":"7"}
  %unknown = f32[8]{0} copy(%a), backend_config={"estimated_cycles":"9223372036854775807"}
}
"""


def test_loops_count_by_their_trips_and_of_branches_the_longest() -> None:
    cycles = 5 * 100 + 20 + 7
    assert read_estimate(TEXT, Rates(flops=1000.0, bytes=20.0)) == Estimate(cycles, kernel_s=5 * 4.0)
    assert read_estimate(TEXT, Rates(flops=1000.0, bytes=10.0)) == Estimate(cycles, kernel_s=5 * 6.0)


def test_a_loop_that_does_not_say_how_long_it_is_counts_as_often_as_it_is_told() -> None:
    unknown = TEXT.replace("constant(5)", "parameter(1)")
    assert read_estimate(unknown, Rates(1000.0, 20.0), 3) == Estimate(3 * 100 + 20 + 7, 3 * 4.0)
    assert read_estimate(unknown, Rates(1000.0, 20.0)).cycles == 100 + 20 + 7


def test_a_text_that_says_nothing_of_time_takes_none() -> None:
    text = Path(__file__).with_name("step.hlo").read_text()
    assert read_estimate(text, Rates(1.0, 1.0)) == Estimate(0, 0)
    assert read_estimate("", Rates(1.0, 1.0)) == Estimate(0, 0)
