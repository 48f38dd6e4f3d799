from __future__ import annotations

import threading

import pytest

from forebay.errors import WeightsError
from forebay.learner.publishing import Publisher
from forebay.trajectory import PolicyVersion


def v(version: int) -> PolicyVersion:
    return PolicyVersion(0, version)


def test_versions_are_published_in_order_and_overtaken_ones_skipped() -> None:
    published: list[tuple[PolicyVersion, str]] = []
    busy, free = threading.Event(), threading.Event()

    def publish(version: PolicyVersion, params: str) -> None:
        busy.set()
        assert free.wait(30)
        published.append((version, params))

    publisher = Publisher(publish)
    publisher.submit(v(1), "one")
    assert busy.wait(30)
    publisher.submit(v(2), "two")
    publisher.submit(v(3), "three")
    free.set()
    publisher.flush()
    publisher.close()
    assert published == [(v(1), "one"), (v(3), "three")]


def test_closing_publishes_what_waits() -> None:
    published: list[PolicyVersion] = []
    publisher = Publisher(lambda version, _: published.append(version))
    publisher.submit(v(1), None)
    publisher.submit(v(2), None)
    publisher.close()
    assert published[-1] == v(2)
    assert published == sorted(published)


def test_an_error_surfaces_at_the_next_look_at_the_next_version_and_at_the_end() -> None:
    def publish(version: PolicyVersion, params: object) -> None:
        raise WeightsError("the disk is full")

    publisher = Publisher(publish)
    publisher.check()
    publisher.submit(v(1), None)
    with pytest.raises(WeightsError):
        publisher.flush()
    with pytest.raises(WeightsError):
        publisher.check()
    with pytest.raises(WeightsError):
        publisher.submit(v(2), None)
    publisher.close()


def test_an_error_surfaces_though_a_later_version_was_published() -> None:
    busy, free = threading.Event(), threading.Event()

    def publish(version: PolicyVersion, params: object) -> None:
        if version == v(1):
            busy.set()
            assert free.wait(30)
            raise WeightsError("the disk is full")

    publisher = Publisher(publish)
    publisher.submit(v(1), None)
    assert busy.wait(30)
    publisher.submit(v(2), None)
    free.set()
    with pytest.raises(WeightsError):
        publisher.flush()
    publisher.close()


def test_the_thread_settles_before_it_publishes() -> None:
    order: list[str] = []
    publisher = Publisher(lambda *_: order.append("published"), lambda: order.append("settled"))
    publisher.submit(v(1), None)
    publisher.close()
    assert order == ["settled", "published"]
