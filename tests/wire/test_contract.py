"""The generated messages are those of the published contract, and the records fit them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from sepp.v1 import queue_pb2

from sepp_trio.wire import Record, records, rpcs
from sepp_trio.wire._codegen import _tables, codecs_source
from sepp_trio.wire._codegen._tables import message_table
from sepp_trio.wire.generated import codecs
from sepp_trio.wire.generated.sepp import v1 as messages
from tests.wire.oracle import DESCRIPTORS, NAMES, is_map

TYPES = {
    getattr(FieldDescriptor, f"TYPE_{name.upper()}"): name
    for name in ("string", "bytes", "bool", "double", "uint32", "uint64", "enum", "message")
} | {FieldDescriptor.TYPE_INT64: "int64"}


def published(field: FieldDescriptor) -> tuple[Any, ...]:
    oneof = field.containing_oneof
    real_oneof = oneof is not None and len(oneof.fields) > 1
    held = field.message_type.name if field.message_type else None
    if is_map(field):
        held = field.message_type.fields_by_name["value"].message_type.name
    return (
        field.name,
        field.number,
        "map" if is_map(field) else TYPES[field.type],
        field.is_repeated and not is_map(field),
        field.has_presence,
        oneof.name if real_oneof else None,
        held,
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_message_is_as_published(name: str) -> None:
    ours = [
        (f.name, f.number, f.type, f.repeated, f.optional, f.oneof, f.map_value or f.message)
        for f in message_table(name).fields
    ]
    theirs = sorted(map(published, DESCRIPTORS[name].fields), key=lambda field: field[1])
    assert ours == theirs


def test_no_message_is_missing_and_none_is_added() -> None:
    others = {"DeadLetterCause", "QueueServiceBase", "QueueServiceStub"}
    assert set(messages.__all__) - others == set(NAMES)
    assert {
        name for name, held in vars(records).items() if isinstance(held, type) and name != "Record"
    } >= set(NAMES)


def test_the_enum_is_as_published() -> None:
    published_enum = queue_pb2.DESCRIPTOR.enum_types_by_name["DeadLetterCause"]
    ours = messages.DeadLetterCause.betterproto_value_to_renamed_proto_names()
    assert ours == {value.number: value.name for value in published_enum.values}


def test_the_calls_are_as_published() -> None:
    service = queue_pb2.DESCRIPTOR.services_by_name["QueueService"]
    ours = {
        name: (spec.route, spec.request.__name__, spec.response.__name__)
        for name, spec in rpcs().items()
    }
    assert ours == {
        method.name: (
            f"/{service.full_name}/{method.name}",
            method.input_type.name,
            method.output_type.name,
        )
        for method in service.methods
    }


def test_a_record_is_built_by_keyword_and_compared_by_content() -> None:
    one = records.AckRequest(job_id="a", attempt=1)
    assert one == records.AckRequest(job_id="a", attempt=1)
    assert one != records.AckRequest(job_id="a", attempt=2)
    assert one != records.AckResponse(job_id="a")
    assert repr(one) == "AckRequest(job_id='a', attempt=1)"
    with pytest.raises(TypeError):
        hash(one)


# ---- The codecs ----


def test_the_codecs_are_those_of_the_messages_and_records() -> None:
    # If not: nox -s proto -- --write
    assert Path(codecs.__file__).read_text() == codecs_source()


def test_the_generated_messages_are_imported_for_generated_stubs_only() -> None:
    program = (
        "import sys, sepp_trio, sepp_trio.wire as wire\n"
        "for rpc in wire.rpcs().values():\n"
        "    wire.decode(rpc.response, wire.encode(rpc.response()))\n"
        "assert not sys.modules.keys() & {'betterproto2', 'asyncio', 'grpclib.server'}\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


# ---- What the codec compiler refuses to guess ----


def with_record(monkeypatch: pytest.MonkeyPatch, name: str, **fields: str) -> None:
    made = make_dataclass(
        name,
        [(n, t, field(default=None)) for n, t in fields.items()],
        bases=(Record,),
        slots=True,
    )
    monkeypatch.setattr(records, name, made)


def test_a_record_that_lacks_a_field_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_record(monkeypatch, "AckRequest", job_id="str", attempt="int")
    with pytest.raises(TypeError, match="fields of record AckRequest"):
        message_table.__wrapped__("AckRequest")


@pytest.mark.parametrize(
    ("name", "fields", "needed"),
    [
        ("AckResponse", {"job_id": "str | None"}, "str"),
        ("ReserveResponse", {"jobs": "list[AckRequest]"}, r"list\[Job\]"),
        ("JobResult", {"success": "EnqueueResponse", "rejection": "x"}, r"EnqueueResponse \| None"),
    ],
)
def test_a_record_with_another_type_is_refused(
    name: str, fields: dict[str, str], needed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_record(monkeypatch, name, **fields)
    with pytest.raises(TypeError, match=f"{name}.*needs {needed}$"):
        message_table.__wrapped__(name)


@pytest.mark.parametrize(
    ("meta", "refused"),
    [
        ({"proto_type": "float"}, "no codec for float"),
        ({"proto_type": "uint32", "repeated": True}, "no codec for repeated uint32"),
        ({"proto_type": "map", "map_types": ("int32", "message")}, "no codec for maps"),
    ],
)
def test_a_field_that_there_is_no_code_for_is_refused(meta: dict[str, Any], refused: str) -> None:
    import betterproto2

    types = meta.pop("map_types", None)
    map_meta = types and betterproto2.map_meta(*types)
    entry = betterproto2.FieldMetadata(1, map_meta=map_meta, **meta)

    class Meta:
        meta_by_field_name = {"job_id": entry}  # noqa: RUF012

    with pytest.raises(TypeError, match=f"AckRequest.job_id: {refused}"):
        _tables._field_table("AckRequest", "job_id", Meta, "str")


def test_an_unknown_message_is_a_lookup_error() -> None:
    with pytest.raises(LookupError, match="no message Nothing"):
        _tables._meta("Nothing")
