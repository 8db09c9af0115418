"""Acks as they are sent."""

from __future__ import annotations

from ..transport import Method
from ..wire import encode, records

_MOST = 256


class AckMessages:
    """Encodes the acks of one worker.

    Those for ids of one length and for the same attempt differ in nothing but the id.
    """

    def __init__(
        self, method: Method[records.AckRequest, records.AckResponse], worker_id: str | None
    ) -> None:
        self.method: Method[bytes, records.AckResponse] = Method(method.route, bytes, method.decode)
        """The call, for a request that is encoded already."""
        self._worker_id = worker_id
        self._known: dict[tuple[int, int], tuple[bytes, bytes]] = {}

    def encode(self, job_id: str, attempt: int) -> bytes:
        """The message that acks an attempt of a job.

        Raises:
            ValueError: the id or the number cannot be sent.
        """
        written = job_id.encode()
        around = self._known.get((len(written), attempt))
        if around is None:
            around = self._around(job_id, attempt, len(written))
        return around[0] + written + around[1]

    def _around(self, job_id: str, attempt: int, length: int) -> tuple[bytes, bytes]:
        """What stands before and after an id of this length: it is the first field."""
        whole = encode(records.AckRequest(job_id, attempt, self._worker_id))
        after = encode(records.AckRequest("", attempt, self._worker_id))
        around = whole[: len(whole) - len(after) - length], after
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[length, attempt] = around
        return around
