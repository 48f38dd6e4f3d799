"""Addresses of servers."""

from __future__ import annotations

import pytest

from forebay.errors import ConfigError
from forebay.store.address import Address, is_loopback, parse_address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://10.0.0.7", Address((("10.0.0.7", 6379),), 0, False)),
        ("rediss://Store.example:6380/2", Address((("store.example", 6380),), 2, True)),
        ("redis://[::1]:7000", Address((("::1", 7000),), 0, False)),
        ("redis://a:1,[::1],b/3", Address((("a", 1), ("::1", 6379), ("b", 6379)), 3, False)),
        ("redis+sentinel://s1,s2:7/mine", Address((("s1", 26379), ("s2", 7)), 0, False, "mine")),
        ("rediss+sentinel://s1/mine/4", Address((("s1", 26379),), 4, True, "mine")),
    ],
)
def test_parts_of_an_address(url: str, address: Address) -> None:
    assert parse_address(url) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis://",
        "redis://h:0x1",
        "redis://h:99999",
        "redis://h/-1",
        "redis://h/?a=b",
        "redis://a,,b",
        "redis://h/service",
        "redis+sentinel://h",
        "redis+sentinel://h/service/x",
        "http+sentinel://h/service",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"store\.url is not an address"):
        parse_address(url)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("a.b", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    assert Address((("127.0.0.1", 1), (host, 1)), 0, False).is_loopback is loopback
