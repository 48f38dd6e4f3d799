"""Sizes that can never work are refused, with the arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from forebay.errors import ConfigError
from forebay.store import StoreSettings, check_capacity

WORKS: dict[str, Any] = {
    "groups_per_batch": 8,
    "batches_in_flight": 2,
    "member_bytes": 1000,
    "group_size": 4,
    "checkpoint_every": 10,
}
JUST_ENOUGH = {
    "capacity_groups": 16,
    "capacity_bytes": 16 * 4 * 1000,
    "retained_capacity_bytes": (10 + 1) * 8 * 4 * 1000,
}


def test_just_enough_is_enough() -> None:
    check_capacity(StoreSettings(**JUST_ENOUGH), **WORKS)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "capacity_groups",
            r"got store.capacity_groups=15, limit >= 2 x 8 = 16\)\. Set store.capacity_groups=16",
        ),
        ("capacity_bytes", r"got store.capacity_bytes=63999, limit >= 16 groups x 4 x 1000 bytes = 64000"),
        (
            "retained_capacity_bytes",
            r"got store.retained_capacity_bytes=351999, limit >= \(1 x 10 \+ 1\) batches x 8 groups x "
            r"4000 bytes = 352000\)\. Checkpoint more often",
        ),
    ],
)
def test_one_less_is_refused_with_the_arithmetic(setting: str, message: str) -> None:
    settings = StoreSettings(**{**JUST_ENOUGH, setting: JUST_ENOUGH[setting] - 1})
    with pytest.raises(ConfigError, match=message) as error:
        check_capacity(settings, **WORKS)
    assert error.value.exit_code == 2


def test_more_checkpoints_retain_more() -> None:
    with pytest.raises(ConfigError, match=r"\(2 x 10 \+ 1\) batches"):
        check_capacity(StoreSettings(**JUST_ENOUGH), **WORKS, checkpoints_kept=2)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValidationError, match="capacity_group"):
        StoreSettings(capacity_group=8)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, r"needs store.url, e.g. \"redis://127.0.0.1:6379/0\""),
        ({"url": "redis://:secret@127.0.0.1"}, "must not hold a user or a password.*store.password_env"),
        ({"url": "http://127.0.0.1"}, "store.url is not an address .*rediss:// for TLS"),
        ({"url": "redis://127.0.0.1/x"}, "store.url is not an address"),
        ({"url": "redis://store.example"}, "in the clear to store.example. Use rediss://"),
        ({"url": "redis://127.0.0.1", "tls_ca_file": "ca.pem"}, "are for rediss:// addresses"),
        ({"url": "rediss://store.example", "tls_key_file": "key.pem"}, "belong together"),
        ({"url": "redis://127.0.0.1", "username": "forebay"}, "needs store.password_env"),
    ],
)
def test_addresses_that_cannot_or_should_not_be_used_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        StoreSettings(engine="redis", **wrong)


@pytest.mark.parametrize(
    ("url", "allow_plaintext"),
    [
        ("redis://127.0.0.1:6379/3", False),
        ("redis://localhost", False),
        ("redis://[::1]:6379", False),
        ("rediss://store.example:6380", False),
        ("redis://store.example", True),
    ],
)
def test_addresses_that_may_be_used(url: str, allow_plaintext: bool) -> None:
    settings = StoreSettings(engine="redis", url=url, allow_plaintext=allow_plaintext)
    assert settings.url == url


def test_address_with_a_wrong_password_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ValidationError) as caught:
        StoreSettings(engine="redis", url="redis://:hunter2@127.0.0.1")
    assert "hunter2" not in str(caught.value.errors()[0]["msg"])
