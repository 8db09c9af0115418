"""The payment provider, as far as the tests need one: it charges cards, on Trio's clock.

It behaves like the real ones: a request takes time to get there, its answer takes time to come
back, and who gives up in between does not know whether the card was charged. Asked once more with
the same idempotency key, it does not charge again but repeats its answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio


class CardDeclined(Exception):
    """The card will not be charged, today or tomorrow."""


class ProviderBusy(Exception):
    """Not now."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What the provider took from a card."""

    id: int
    card: str
    cents: int


@dataclass
class FakeProvider:
    """A provider in memory. `charges` is what it will send the bill for."""

    latency: float = 0.1
    """Seconds that a request takes, and its answer as well."""
    declined: frozenset[str] = frozenset()
    """Cards without cover."""
    busy: int = 0
    """How many requests it will turn away before it takes one."""
    charges: list[Charge] = field(default_factory=list)
    _answers: dict[str, Charge] = field(default_factory=dict)

    async def charge(self, card: str, cents: int, *, idempotency_key: str) -> Charge:
        """Charge the card. A checkpoint; after a cancel it may have happened.

        Raises `CardDeclined` or `ProviderBusy`; then it has not.
        """
        await trio.sleep(self.latency)
        answer = self._answers.get(idempotency_key)
        if answer is None:
            if self.busy:
                self.busy -= 1
                raise ProviderBusy
            if card in self.declined:
                raise CardDeclined(card)
            answer = Charge(len(self.charges) + 1, card, cents)
            self.charges.append(answer)
            self._answers[idempotency_key] = answer
        await trio.sleep(self.latency)
        return answer
