from __future__ import annotations

import threading

import pytest

from forebay.errors import StoreError
from forebay.telemetry.little import Flow
from forebay.telemetry.occupancy import OccupancySampler


def test_looks_add_up_and_are_forgotten_once_told() -> None:
    seen = iter([{"buffer": 2}, {"buffer": 5, "handover": 1}])
    sampler = OccupancySampler(lambda: next(seen))
    sampler.sample()
    sampler.sample()
    assert sampler.drain() == {"buffer": Flow(0, 0.0, 2, 7, 29), "handover": Flow(0, 0.0, 1, 1, 1)}
    assert sampler.drain() == {}


def test_a_store_that_does_not_answer_costs_the_look_and_is_told_of(caplog) -> None:
    def look():
        raise StoreError("away")

    sampler = OccupancySampler(look)
    sampler.sample()
    sampler.sample()
    assert (sampler.drain(), sampler.num_failed) == ({}, 2)
    assert caplog.text == ""
    sampler.close()
    assert "2 looks at the queues were not answered" in caplog.text


def test_the_thread_looks_until_it_is_closed() -> None:
    enough, begun = threading.Event(), []

    def look():
        if len(begun) > 5:
            enough.set()
        begun.append(threading.current_thread())
        return {"buffer": 1}

    sampler = OccupancySampler(look, period_s=0.001)
    sampler.start(lambda: begun.append(threading.current_thread()))
    assert enough.wait(30.0)
    sampler.close()
    assert len(set(begun)) == 1 and begun[0] is not threading.current_thread()
    assert sampler.drain()["buffer"].seen >= 5


def test_what_ends_the_thread_is_told_at_the_end() -> None:
    begun = threading.Event()

    def look():
        begun.set()
        raise ZeroDivisionError

    sampler = OccupancySampler(look, period_s=0.001)
    sampler.start()
    assert begun.wait(30.0)
    with pytest.raises(ZeroDivisionError):
        sampler.close()
