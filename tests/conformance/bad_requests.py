"""Requests that no server takes, whatever state it is in: an RPC and the bytes for it."""

from __future__ import annotations

from typing import Any

from tests.conformance.wire import NOBODY, batch, new_job, pb, reserve_request


def _spoilt(request: Any, **fields: Any) -> bytes:
    for name, value in fields.items():
        setattr(request, name, value)
    data: bytes = request.SerializeToString()
    return data


def _reserve(*queues: str, lease: float = 30.0, wait: float = 0.0, **fields: Any) -> bytes:
    return _spoilt(reserve_request(*queues, lease=lease, wait=wait), **fields)


def _nack(strategy: bool, **fields: Any) -> bytes:
    request = pb.NackRequest(job_id=NOBODY, attempt=1)
    if strategy:
        request.retry.SetInParent()
    return _spoilt(request, **fields)


def _negative_delay() -> bytes:
    request = pb.NackRequest(job_id=NOBODY, attempt=1)
    request.retry.delay.nanos = -1
    return _spoilt(request)


def _extend(seconds: int | None) -> bytes:
    request = pb.ExtendRequest(job_id=NOBODY, attempt=1)
    if seconds is not None:
        request.lease_duration.seconds = seconds
    return _spoilt(request)


BAD: list[tuple[str, bytes]] = [
    *((rpc, b"\xff\xff") for rpc in ("EnqueueBatch", "Reserve", "Ack", "Nack", "GetServerInfo")),
    ("Ack", b"\x0a\x02\xc3\x28"),
    ("NoSuchMethod", b""),
    ("EnqueueBatch", b""),
    ("EnqueueAtomic", b""),
    ("EnqueueBatch", batch(*[new_job("a")] * 257).SerializeToString()),
    ("EnqueueAtomic", batch(*[new_job("a")] * 257).SerializeToString()),
    ("Reserve", b""),
    ("Reserve", _reserve()),
    ("Reserve", _reserve("a", "")),
    ("Reserve", _reserve("a/b")),
    ("Reserve", _reserve("q" * 513)),
    ("Reserve", _reserve(*"a" * 33)),
    ("Reserve", _reserve("a", lease=0.0)),
    ("Reserve", _reserve("a", lease=-1.0)),
    ("Reserve", _reserve("a", wait=-1.0)),
    ("Reserve", _reserve("a", worker_id="")),
    ("Reserve", _reserve("a", max_jobs=0)),
    ("Reserve", _spoilt(pb.ReserveRequest(queues=["a"]))),
    *(
        (rpc, _spoilt(kind(job_id=job_id, attempt=attempt)))
        for rpc, kind in (("Ack", pb.AckRequest), ("Nack", pb.NackRequest))
        for job_id, attempt in (
            ("", 1),
            ("nonsense", 1),
            (NOBODY.replace("-", "_"), 1),
            (NOBODY, 0),
            (NOBODY, 1),
            (NOBODY.replace("4", "A"), 1),
        )
    ),
    ("Ack", _spoilt(pb.AckRequest(job_id=NOBODY, attempt=1), worker_id="")),
    ("Nack", _nack(strategy=True)),
    ("Nack", _nack(strategy=False, worker_id="")),
    ("Nack", _negative_delay()),
    *(("Extend", _extend(seconds)) for seconds in (None, 0, -1, 30, 2**63 - 1)),
    ("DrainDeadLetters", _spoilt(pb.DrainDeadLettersRequest(), queue="")),
    ("DrainDeadLetters", _spoilt(pb.DrainDeadLettersRequest(), max=0)),
]
