from __future__ import annotations

import threading

import pytest

from forebay.clock import SystemClock
from forebay.errors import ConfigError
from forebay.launch.probes import Finding, Probe, look

FINE = Finding("one", "ok", "there")


def fails(error: Exception) -> Probe:
    def look_at_it() -> list[Finding]:
        raise error

    return Probe("broken", look_at_it)


def test_findings_come_in_the_order_of_the_probes() -> None:
    probes = [Probe("one", lambda: [FINE, FINE]), Probe("two", list)]
    assert list(look(probes, SystemClock())) == [FINE, FINE]


def test_a_probe_that_hangs_is_a_finding_and_holds_nobody_up() -> None:
    never = threading.Event()
    hangs = Probe("disk", lambda: [FINE] if never.wait(60.0) else [], limit_s=0.05)
    found = list(look([hangs, Probe("one", lambda: [FINE])], SystemClock()))
    never.set()
    assert [(item.what, item.level) for item in found] == [("disk", "bad"), ("one", "ok")]
    assert found[0].seen == "no answer in 0 s"


@pytest.mark.parametrize(
    ("error", "seen", "remedy"),
    [
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device", ""),
        (ConfigError("too many", got=9, limit=8, remedy="Fewer."), "too many (got 9, limit 8)", "Fewer."),
    ],
)
def test_an_expected_error_is_a_finding_with_its_remedy(error: Exception, seen: str, remedy: str) -> None:
    assert list(look([fails(error)], SystemClock())) == [Finding("broken", "bad", seen, remedy)]
