"""What a producer hands in, and what it gets back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime

from ._checks import aware, integer, queue_name, text
from ._payload import Payload, Primitive, TraceContext, checked_custom
from ._value import Value


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EnqueueRequest(Value):
    """One job to be stored.

    Args:
        queue: Not empty, not ``.`` or ``..``, no ``/``, no control characters.
        job_type: Not empty; it chooses the handler.
        payload: What the handler gets; ``None`` for a job without data.
        idempotency_key: A second request with the same key on the same queue within
            the server's window (24 h by default) gives the first one's id and stores
            nothing. Only requests with a key can be repeated after an ambiguous failure.
        priority: 0 to 9, 9 first; the queue's default when ``None``.
        max_attempts: How often the job may be delivered; the queue's default when ``None``.
        custom: Small values beside the payload.
        trace_context: Travels with the job.
        scheduled_at: Not delivered before; an aware datetime.

    Raises:
        TypeError, ValueError: naming the field and the limit.
    """

    queue: str
    job_type: str
    payload: Payload | None = None
    _: KW_ONLY
    idempotency_key: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    custom: Mapping[str, Primitive] = field(default_factory=dict, hash=False)
    trace_context: TraceContext | None = None
    scheduled_at: datetime | None = None

    def __post_init__(self) -> None:
        queue_name(self.queue)
        text(self.job_type, "job_type")
        if self.payload is not None and not isinstance(self.payload, Payload):
            raise TypeError(f"payload must be a Payload, not {type(self.payload).__name__}")
        if self.idempotency_key is not None:
            text(self.idempotency_key, "idempotency_key")
        if self.priority is not None:
            integer(self.priority, "priority", 0, 9)
        if self.max_attempts is not None:
            integer(self.max_attempts, "max_attempts", 1)
        custom = self.custom
        # A copy, as the caller may change its own.
        usual = not custom and type(custom) is dict
        object.__setattr__(self, "custom", {} if usual else checked_custom(custom))
        if self.trace_context is not None and not isinstance(self.trace_context, TraceContext):
            raise TypeError(
                f"trace_context must be a TraceContext, not {type(self.trace_context).__name__}"
            )
        if self.scheduled_at is not None:
            aware(self.scheduled_at, "scheduled_at")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EnqueueAck(Value):
    """The job is stored durably; ``deduplicated`` if an earlier request with the key did it."""

    job_id: str
    deduplicated: bool
