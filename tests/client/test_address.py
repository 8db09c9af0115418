"""Addresses: four forms, everything else refused with what was given and why."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepp_trio.client._address import TcpAddress, UnixAddress, parse_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:50051", TcpAddress("localhost", 50051, None)),
        ("http://localhost:50051", TcpAddress("localhost", 50051, "http")),
        ("http://localhost:50051/", TcpAddress("localhost", 50051, "http")),
        ("https://queue.example.com:443", TcpAddress("queue.example.com", 443, "https")),
        ("HTTPS://queue.example.com:443", TcpAddress("queue.example.com", 443, "https")),
        ("127.0.0.1:1", TcpAddress("127.0.0.1", 1, None)),
        ("[::1]:65535", TcpAddress("::1", 65535, None)),
        ("https://[fe80::1%eth0]:443", TcpAddress("fe80::1%eth0", 443, "https")),
        ("sepp_server.internal.:50051", TcpAddress("sepp_server.internal.", 50051, None)),
        ("unix:/run/sepp.sock", UnixAddress("/run/sepp.sock")),
        ("unix:/with a:colon", UnixAddress("/with a:colon")),
        ("unix:///run/sepp.sock", UnixAddress("///run/sepp.sock")),
    ],
)
def test_the_four_forms_are_read(text: str, expected: TcpAddress | UnixAddress) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the port is missing"),
        ("localhost", "the port is missing"),
        ("http://localhost", "the port is missing"),
        ("[::1]", "the port is missing"),
        ("localhost:", "port must be between 1 and 65535, not ''"),
        ("localhost:0", "port must be between 1 and 65535, not '0'"),
        ("localhost:65536", "port must be between 1 and 65535, not '65536'"),
        ("localhost:-1", "port must be between 1 and 65535, not '-1'"),
        ("localhost:٣", "port must be between 1 and 65535"),
        ("localhost:grpc", "port must be between 1 and 65535, not 'grpc'"),
        ("localhost:5/", "port must be between 1 and 65535, not '5/'"),
        ("http://localhost:5/path", "port must be between 1 and 65535, not '5/path'"),
        (":50051", "the host is missing"),
        ("::1:50051", "an IPv6 address stands in brackets"),
        ("[::g]:50051", "'::g' is no IPv6 address"),
        ("[127.0.0.1]:50051", "'127.0.0.1' is no IPv6 address"),
        ("user@host:50051", "'user@host' is no host name"),
        ("a b:50051", "'a b' is no host name"),
        ("a..b:50051", "'a..b' is no host name"),
        ("host\n:50051", "is no host name"),
        (f"{'a' * 64}:50051", "is no host name"),
        (f"{'a.' * 130}a:50051", "is no host name"),
        ("bücher.example:50051", "xn-- form"),
        ("grpc://localhost:50051", "unknown scheme 'grpc'"),
        ("unix:relative", "a Unix socket needs an absolute path"),
        ("unix:", "a Unix socket needs an absolute path"),
        ("unix:/", "a Unix socket needs an absolute path"),
        ("unix:/a\0b", "null character"),
        ("unix:/a\ud800b", "no file can have this name"),
        ("[fe80::1%a b]:50051", "'a b' is no zone"),
        ("[fe80::1%\n]:50051", "is no zone"),
        ("[fe80::1%ä]:50051", "'ä' is no zone"),
    ],
)
def test_everything_else_is_refused_with_what_was_given(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_address(text)
    assert repr(text) in str(caught.value)
    assert reason in str(caught.value)
    assert "host:port, http://host:port, https://host:port or unix:/path" in str(caught.value)


def test_an_address_is_a_string() -> None:
    with pytest.raises(TypeError, match="address must be a string or a callable, not tuple"):
        parse_address(("localhost", 50051))  # type: ignore[arg-type]


@given(st.text())
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_address(text)


labels = st.from_regex(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,10}[A-Za-z0-9_])?", fullmatch=True)
hosts = st.lists(labels, min_size=1, max_size=4).map(".".join)
authorities = st.builds(
    "{}:{}".format,
    hosts | st.ip_addresses(v=4).map(str) | st.ip_addresses(v=6).map("[{}]".format),
    st.integers(1, 65535),
)


@given(authorities)
def test_an_authority_is_what_was_given(text: str) -> None:
    address = parse_address(text)
    assert isinstance(address, TcpAddress)
    assert address.authority == text
    assert parse_address(f"http://{text}") == TcpAddress(address.host, address.port, "http")


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("localhost:1", True),
        ("LOCALHOST.:1", True),
        ("127.8.0.1:1", True),
        ("[::1]:1", True),
        ("unix:/run/sepp.sock", True),
        ("10.0.0.1:1", False),
        ("[2001:db8::1]:1", False),
        ("localhost.example.com:1", False),
    ],
)
def test_loopback_is_known(text: str, loopback: bool) -> None:
    assert parse_address(text).is_loopback is loopback
