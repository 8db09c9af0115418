"""One server of the comparison: asks it, and puts its answers into a form that both share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import grpc

from tests.conformance.wire import milliseconds, pb, response_class, route

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.servers import Server

# Between the clocks of this process and of a server, which reads the wall clock only once.
CLOCKS = 30


class Side:
    """A server and the ids that it gave out, by number."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._channel = grpc.insecure_channel(server.address)
        self.ids: list[str] = []
        self._numbers: dict[str, int] = {}

    def close(self) -> None:
        """End the connection and the server."""
        self._channel.close()
        self.server.close()

    def ask(self, rpc: str, request: bytes) -> Any:
        """Begin a call; `answer` waits for it."""
        return self._channel.unary_unary(route(rpc)).future(request, timeout=20)

    def answer(self, rpc: str, call: Any) -> Any:
        """The answer with numbers for ids, or the name of the status."""
        try:
            data = call.result()
        except grpc.RpcError as error:
            return error.code().name
        answer = response_class(rpc).FromString(data)
        for message, field in _ids(rpc, answer):
            setattr(message, field, f"#{self._number(getattr(message, field))}")
        for rejection in _rejections(rpc, answer):
            # What it says in words is not part of the contract.
            if rejection.HasField("invalid_request"):
                assert rejection.invalid_request.message
                rejection.invalid_request.message = ""
        if rpc == "GetServerInfo":
            answer.ClearField("server_version")
            answer.ClearField("server_time")
        return answer

    def with_numbers(self, text: str) -> str:
        """The text with numbers for the ids that are known."""
        return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", self._label, text)

    def _label(self, match: re.Match[str]) -> str:
        return f"#{self._numbers[match[0]]}" if match[0] in self._numbers else match[0]

    def _number(self, job_id: str) -> int:
        # Acks and the like echo what they were asked about: known, or made up by the walk.
        if job_id not in self._numbers:
            self._numbers[job_id] = len(self.ids)
            self.ids.append(job_id)
        return self._numbers[job_id]


def _jobs(rpc: str, answer: Any) -> Iterator[Any]:
    if rpc == "Reserve":
        yield from answer.jobs
    elif rpc == "DrainDeadLetters":
        yield from (record.job for record in answer.records)


def _ids(rpc: str, answer: Any) -> Iterator[tuple[Any, str]]:
    if rpc == "EnqueueBatch":
        for result in answer.results:
            if result.HasField("success"):
                yield result.success, "job_id"
    elif rpc == "EnqueueAtomic":
        for response in answer.success.responses:
            yield response, "job_id"
    elif rpc in ("Ack", "Nack", "Extend"):
        yield answer, "job_id"
    for job in _jobs(rpc, answer):
        yield job, "id"


def _rejections(rpc: str, answer: Any) -> Iterator[Any]:
    if rpc == "EnqueueBatch":
        yield from (result.rejection for result in answer.results if result.HasField("rejection"))
    elif rpc == "EnqueueAtomic" and answer.HasField("rejection"):
        yield from (error.rejection for error in answer.rejection.errors)


def without_times(rpc: str, answer: Any, within: dict[str, tuple[float, float]]) -> Any:
    """The answer less the server's clock readings, each of which lies between the two times that
    are given for its field (`#number` for when a job was enqueued)."""
    if isinstance(answer, str):
        return answer
    for job in _jobs(rpc, answer):
        _cut(job, "enqueued_at", within.get(job.id))
        if rpc == "Reserve":
            _cut(job, "lease_expires_at", within["lease_expires_at"])
    if rpc == "Extend":
        _cut(answer, "lease_expires_at", within["lease_expires_at"])
    elif rpc == "DrainDeadLetters":
        failed = [milliseconds(record.failed_at) for record in answer.records]
        assert failed == sorted(failed)
        for record in answer.records:
            _cut(record, "failed_at", (0.0, within["now"][1]))
            # Epoch zero, but there.
            assert record.job.lease_expires_at == pb.Job().lease_expires_at
            assert record.job.HasField("lease_expires_at")
    return answer


def _cut(message: Any, field: str, times: tuple[float, float] | None) -> None:
    assert message.HasField(field), f"{field} is not there"
    at = milliseconds(getattr(message, field))
    if times is not None:
        first, last = times
        assert first * 1000 - CLOCKS <= at <= last * 1000 + CLOCKS, f"{field}: {at}, {times}"
    message.ClearField(field)
