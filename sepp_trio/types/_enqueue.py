"""What a producer hands in, and what it gets back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from ._checks import aware, integer, queue_name, text
from ._payload import Payload, Primitive, TraceContext, checked_custom
from ._value import Value

_NONE: Final[Mapping[str, Primitive]] = MappingProxyType({})
_MOST_NAMES = 1024
_LONGEST_NAMES = 256

_names: set[tuple[str, str]] = set()
"""Queues and job types that have passed: most jobs have those of the job before."""


class _Draft(Value):
    """An EnqueueRequest in the making: members are set as in any object."""

    __slots__ = (
        "custom",
        "idempotency_key",
        "job_type",
        "max_attempts",
        "payload",
        "priority",
        "queue",
        "scheduled_at",
        "trace_context",
    )


@dataclass(frozen=True, slots=True, eq=False, repr=False, init=False)
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

    def __init__(
        self,
        queue: str,
        job_type: str,
        payload: Payload | None = None,
        *,
        idempotency_key: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        custom: Mapping[str, Primitive] = _NONE,
        trace_context: TraceContext | None = None,
        scheduled_at: datetime | None = None,
    ) -> None:
        nothing = custom is _NONE
        if nothing:
            custom = {}
        if self.__class__ is EnqueueRequest:
            # To set the members of a frozen object one by one takes longer than all the rest.
            draft: Any = self
            _set_class(draft, _Draft)
            draft.queue = queue
            draft.job_type = job_type
            draft.payload = payload
            draft.idempotency_key = idempotency_key
            draft.priority = priority
            draft.max_attempts = max_attempts
            draft.custom = custom
            draft.trace_context = trace_context
            draft.scheduled_at = scheduled_at
            _set_class(draft, EnqueueRequest)
        else:
            members = (queue, job_type, payload, idempotency_key, priority, max_attempts)
            for item, value in zip(
                fields(self), (*members, custom, trace_context, scheduled_at), strict=False
            ):
                object.__setattr__(self, item.name, value)
        # What most requests are has passed already, or is seen at a glance.
        if (
            queue.__class__ is str
            and job_type.__class__ is str
            and (queue, job_type) in _names
            and (payload is None or payload.__class__ is Payload)
            and (idempotency_key is None or _is_plain(idempotency_key))
            and (priority is None or (priority.__class__ is int and 0 <= priority <= 9))
            and max_attempts is None
            and trace_context is None
            and scheduled_at is None
        ):
            if not nothing:
                object.__setattr__(self, "custom", checked_custom(custom))
        else:
            self.__post_init__()
            _remember(queue, job_type)

    def __post_init__(self) -> None:
        # By itself in the constructor that a dataclass makes for a subclass.
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


_set_class: Any = vars(object)["__class__"].__set__


def _is_plain(key: str) -> bool:
    return key.__class__ is str and key.isascii() and key != ""


def _remember(queue: str, job_type: str) -> None:
    plain = queue.__class__ is str and job_type.__class__ is str
    if plain and len(queue) + len(job_type) <= _LONGEST_NAMES:
        if len(_names) >= _MOST_NAMES:
            _names.clear()
        _names.add((queue, job_type))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EnqueueAck(Value):
    """The job is stored durably; ``deduplicated`` if an earlier request with the key did it."""

    job_id: str
    deduplicated: bool

    @classmethod
    def _of_stored(cls, job_ids: Iterable[str]) -> list[EnqueueAck]:
        """The acks of new jobs, at a third of the cost."""
        acks = []
        new = object.__new__
        for job_id in job_ids:
            ack = new(cls)
            _set_job_id(ack, job_id)
            _set_deduplicated(ack, False)
            acks.append(ack)
        return acks


_set_job_id = vars(EnqueueAck)["job_id"].__set__
_set_deduplicated = vars(EnqueueAck)["deduplicated"].__set__
