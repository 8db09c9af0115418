"""Payloads, custom maps and trace contexts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from sepp_trio.types import Payload, Primitive, TraceContext

from ._draw import LIMITS, check_bound, texts

# The shortest JSON documents of every kind, null and false among them, fit into so much.
_ROOM_FOR_JSON: Final = 5
_TRACE_IDS: Final = 2**128 - 1
_SPAN_IDS: Final = 2**64 - 1


def payloads(
    *,
    encodings: Sequence[str] | None = None,
    values: st.SearchStrategy[object] | None = None,
    max_size: int = 1024,
    allow_none: bool = False,
) -> st.SearchStrategy[Payload | None]:
    """Payloads that any server takes.

    Args:
        encodings: Which labels; ``json`` with a JSON document, ``text`` with UTF-8, any other
            with any bytes. By default ``json``, ``text`` and ``bytes``.
        values: What the JSON documents say; the only encoding is then ``json`` unless
            ``encodings`` says more. Any JSON if not given.
        max_size: Bytes of data, at most.
        allow_none: Jobs without data, too.

    Raises:
        InvalidArgument: ``max_size`` is beyond the limit of a server, or there are no encodings.
    """
    check_bound(max_size, "max_size", 1, LIMITS.max_payload_bytes)
    if encodings is None:
        encodings = ("json", "text", "bytes") if values is None else ("json",)
    if isinstance(encodings, str) or not encodings:
        raise InvalidArgument(f"encodings must be labels, at least one, not {encodings!r}")
    drawn: list[st.SearchStrategy[Payload | None]] = [
        _payloads_of(encoding, values, max_size) for encoding in encodings
    ]
    if allow_none:
        drawn.insert(0, st.none())
    return st.one_of(drawn)


def _payloads_of(
    encoding: str, values: st.SearchStrategy[object] | None, max_size: int
) -> st.SearchStrategy[Payload]:
    if encoding == "json":
        documents = _json_values(max_size) if values is None else values
        return st.builds(Payload.json, documents).filter(
            lambda payload: len(payload.data) <= max_size
        )
    if encoding == "text":
        return texts(max_bytes=max_size).map(lambda text: Payload(text.encode(), encoding))
    return st.builds(Payload, st.binary(min_size=1, max_size=max_size), st.just(encoding))


def _json_values(max_size: int) -> st.SearchStrategy[object]:
    if max_size < _ROOM_FOR_JSON:
        return st.integers(0, 9)
    words = st.text(st.characters(codec="utf-8"), max_size=max_size // 8)
    floats = st.floats(allow_nan=False, allow_infinity=False)
    leaves = st.one_of(st.none(), st.booleans(), st.integers(), words, floats)
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
        max_leaves=8,
    )


def custom_maps(
    *,
    keys: st.SearchStrategy[str] | None = None,
    values: st.SearchStrategy[Primitive] | None = None,
    min_size: int = 0,
    max_size: int = LIMITS.max_custom_entries,
    allow_nan: bool = False,
) -> st.SearchStrategy[dict[str, Primitive]]:
    """Maps for ``custom`` that any server takes, its limit on their bytes included.

    Args:
        keys: What they are drawn from; any text of up to 256 bytes if not given.
        values: Texts, 64-bit integers, floats and bools if not given.
        min_size: Entries, at least.
        max_size: Entries, at most.
        allow_nan: NaN as well, which is not equal to itself.

    Raises:
        InvalidArgument: a bound is beyond the limits of a server.
    """
    check_bound(max_size, "max_size", 0, LIMITS.max_custom_entries)
    check_bound(min_size, "min_size", 0, max_size)
    if keys is None:
        keys = texts(max_bytes=LIMITS.max_custom_key_bytes)
    if values is None:
        values = st.one_of(
            st.booleans(),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(allow_nan=allow_nan),
            st.text(st.characters(codec="utf-8"), max_size=LIMITS.max_custom_total_bytes),
        )
    return st.dictionaries(keys, values, min_size=min_size, max_size=max_size).filter(_fits)


def _fits(custom: dict[str, Primitive]) -> bool:
    total = sum(len(key.encode()) + _counted(value) for key, value in custom.items())
    return total <= LIMITS.max_custom_total_bytes


def _counted(value: Primitive) -> int:
    if isinstance(value, str):
        return len(value.encode())
    return 1 if isinstance(value, bool) else 8


def trace_contexts() -> st.SearchStrategy[TraceContext]:
    """W3C trace contexts."""
    states = st.none() | st.from_regex(r"[a-z]{1,4}=[a-z0-9]{1,4}", fullmatch=True)
    return st.builds(
        TraceContext,
        st.builds(
            "00-{:032x}-{:016x}-{:02x}".format,
            st.integers(1, _TRACE_IDS),
            st.integers(1, _SPAN_IDS),
            st.integers(0, 1),
        ),
        states,
    )
