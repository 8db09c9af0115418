"""How long a job waits after a nack that names no delay."""

from __future__ import annotations

import hashlib

from .config import QueueSettings

# Doubling past this many bits is beyond every possible limit.
_MAX_DOUBLINGS = 64


def policy_delay_ms(settings: QueueSettings, job_id: bytes, attempt: int) -> int:
    """The queue's delay after failed attempt number ``attempt``, in milliseconds.

    Up to a quarter is taken off, always the same for one job and attempt, so that jobs that
    failed together do not come back together.
    """
    delay = settings.retry_delay_ms
    if settings.retry_backoff == "exponential":
        delay <<= min(attempt - 1, _MAX_DOUBLINGS)
    delay = min(delay, settings.retry_delay_max_ms, settings.max_schedule_horizon_ms)
    seed = hashlib.blake2b(job_id + attempt.to_bytes(4, "little"), digest_size=8).digest()
    return delay - int.from_bytes(seed, "little") % (delay // 4 + 1)
