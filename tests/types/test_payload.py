"""Payload, trace context, priority and the custom map."""

from __future__ import annotations

from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepp_trio.types import EnqueueRequest, Payload, Priority, TraceContext

VALID = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_payload_has_data_and_a_label() -> None:
    payload = Payload(b"x", "raw")
    assert (payload.data, payload.encoding) == (b"x", "raw")
    assert payload == Payload(bytearray(b"x"), "raw")  # type: ignore[arg-type]
    assert hash(payload) == hash(Payload(memoryview(b"x"), "raw"))  # type: ignore[arg-type]


def test_a_payload_is_never_empty() -> None:
    with pytest.raises(ValueError, match=r"payload\.data must not be empty"):
        Payload(b"", "raw")
    with pytest.raises(ValueError, match=r"payload\.encoding must not be empty"):
        Payload(b"x", "")
    with pytest.raises(TypeError, match=r"payload\.data must be bytes, not str"):
        Payload("x", "raw")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"payload\.encoding must be a string, not NoneType"):
        Payload(b"x", None)  # type: ignore[arg-type]


def test_json_payloads_are_compact_utf8() -> None:
    payload = Payload.json({"to": "ä", "n": [1, None]})
    assert payload == Payload('{"to":"ä","n":[1,null]}'.encode(), "json")


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_json_payloads_read_back(value: object) -> None:
    assert Payload.json(value).decode_json() == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"])
def test_what_json_cannot_hold_is_a_value_error(value: object) -> None:
    with pytest.raises(ValueError):
        Payload.json(value)


def test_what_json_has_no_form_for_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        Payload.json({1, 2})


def test_data_that_is_no_json_is_a_value_error() -> None:
    for data in (b"{", b"\xff"):
        with pytest.raises(ValueError):
            Payload(data, "json").decode_json()


def test_trace_contexts_are_kept() -> None:
    assert TraceContext(VALID).tracestate is None
    assert TraceContext(VALID, "a=b").tracestate == "a=b"
    assert TraceContext(VALID.upper(), "").traceparent == VALID.upper()
    assert TraceContext(VALID.replace("00-", "fe-", 1)).traceparent.startswith("fe")


TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    "traceparent",
    [
        f"00-{TRACE}-{SPAN}",
        f"0-{TRACE}-{SPAN}-01",
        f"zz-{TRACE}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-g{TRACE[1:]}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{SPAN[1:]}-01",
        f"00-{TRACE}-g{SPAN[1:]}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0g",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE}-{SPAN}-01-more",
    ],
)
def test_a_wrong_traceparent_is_refused(traceparent: str) -> None:
    with pytest.raises(ValueError, match=r"trace_context\.traceparent must be VERSION-TRACEID"):
        TraceContext(traceparent)


def test_trace_context_members_are_strings() -> None:
    with pytest.raises(ValueError, match=r"trace_context\.traceparent must not be empty"):
        TraceContext("")
    with pytest.raises(TypeError, match=r"trace_context\.tracestate must be a string, not int"):
        TraceContext(VALID, 1)  # type: ignore[arg-type]


def test_priorities_are_ordered_ints() -> None:
    assert Priority.MIN is Priority.P0
    assert Priority.MAX is Priority.P9
    assert Priority.P7 == 7
    assert Priority.P3 < Priority.P4
    assert len({Priority.P1, Priority(1)}) == 1
    for wrong in (-1, 10, 255):
        with pytest.raises(ValueError):
            Priority(wrong)


def custom(values: object) -> EnqueueRequest:
    return EnqueueRequest("q", "t", custom=values)  # type: ignore[arg-type]


def test_custom_values_of_all_kinds_are_taken() -> None:
    values = {"s": "", "i": -(2**63), "d": float("nan"), "b": True, "e": Priority.P1}
    request = custom(MappingProxyType(values))
    assert list(request.custom) == list(values)
    assert request.custom["b"] is True


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ([("a", 1)], TypeError, "custom must be a mapping, not list"),
        ({"": 1}, ValueError, "a key of custom must not be empty"),
        ({1: 1}, TypeError, "a key of custom must be a string, not int"),
        ({"\ud800": 1}, ValueError, "a key of custom must be valid Unicode"),
        ({"k": "\ud800"}, ValueError, r"custom\['k'\] must be valid Unicode"),
        ({"k": 2**63}, ValueError, r"custom\['k'\] must fit in 64 bits, not 9223372036854775808"),
        ({"k": -(2**63) - 1}, ValueError, r"custom\['k'\] must fit in 64 bits"),
        ({"k": None}, TypeError, r"custom\['k'\] must be str, int, float or bool, not NoneType"),
        ({"k": b""}, TypeError, r"custom\['k'\] must be str, int, float or bool, not bytes"),
    ],
)
def test_custom_values_that_the_wire_cannot_hold_are_refused(
    values: object, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        custom(values)


def test_the_custom_map_is_a_copy_of_its_own() -> None:
    given_map = {"a": 1}
    request = custom(given_map)
    given_map["b"] = 2
    assert request.custom == {"a": 1}
    assert EnqueueRequest("q", "t").custom is not EnqueueRequest("q", "t").custom
