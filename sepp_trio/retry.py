"""How often, and after which pauses, a failed call is repeated."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from .types._checks import Duration, integer, seconds, shown
from .types._value import Value


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RetryPolicy(Value):
    """Repeats of a call after a passing failure; the default makes one attempt.

    Only what may be repeated is: never a reserve or a drain, and an enqueue without
    idempotency keys only when the failure leaves no doubt. Calls that the server is
    known not to have seen are repeated without a policy.

    Args:
        max_attempts: Calls in all, at least 1.
        initial_backoff: Seconds before the second attempt.
        max_backoff: Seconds; no pause is longer.
        multiplier: Each pause is this much longer than the one before; at least 1.
        jitter: Multiply each pause with a random factor of 0.5 to 1, so that callers
            that failed together do not come back together.
    """

    max_attempts: int = 1
    initial_backoff: Duration = 0.1
    max_backoff: Duration = 10.0
    multiplier: float = 2.0
    jitter: bool = True

    def __post_init__(self) -> None:
        integer(self.max_attempts, "max_attempts", 1)
        for name in ("initial_backoff", "max_backoff"):
            object.__setattr__(self, name, seconds(getattr(self, name), name))
        if isinstance(self.multiplier, bool) or not isinstance(self.multiplier, (int, float)):
            raise TypeError(f"multiplier must be a number, not {type(self.multiplier).__name__}")
        if not 1 <= self.multiplier < float("inf"):
            raise ValueError(
                f"multiplier must be at least 1 and finite, not {shown(self.multiplier)}"
            )
        if not isinstance(self.jitter, bool):
            raise TypeError(f"jitter must be a bool, not {type(self.jitter).__name__}")

    def backoff(self, attempt: int, random: Callable[[], float] = random.random) -> float:
        """Seconds to pause after the ``attempt``-th failed attempt (from 1)."""
        initial, longest = seconds(self.initial_backoff, ""), seconds(self.max_backoff, "")
        try:
            # A float: an int to the power of a million would take its time.
            pause = min(initial * float(self.multiplier) ** (attempt - 1), longest)
        except OverflowError:
            pause = longest
        return pause * (0.5 + random() / 2) if self.jitter else pause
