"""What a fault proxy has seen pass, to be asserted on."""

from __future__ import annotations

from ._faults import check_rpc
from ._proxied import ProxiedCall


class CallLog:
    """Every call that a client has made, in order; give it to :func:`open_fault_proxy` as its
    ``observer``.

    It shows what the server's state does not: that nothing was sent, how often a call was
    repeated, the intervals of heartbeats.
    """

    def __init__(self) -> None:
        self._calls: list[ProxiedCall] = []

    def of(self, rpc: str) -> tuple[ProxiedCall, ...]:
        """The calls of a kind so far: ``"Reserve"``, ``"Ack"``, ``"Nack"``, ``"Extend"``, …

        Raises:
            ValueError: there is no such call.
        """
        check_rpc(rpc)
        return tuple(call for call in self._calls if call.rpc == rpc)

    def times(self, rpc: str) -> tuple[float, ...]:
        """When they were sent, on Trio's clock."""
        return tuple(call.asked_at for call in self.of(rpc))

    def pending(self, rpc: str) -> tuple[ProxiedCall, ...]:
        """Those that are neither answered nor taken back."""
        return tuple(call for call in self.of(rpc) if call.end is None)

    def asked(self, call: ProxiedCall) -> None:
        """The client has sent the whole request."""
        self._calls.append(call)

    def answered(self, call: ProxiedCall) -> None:
        """The whole reply was written to the client: ``call.end`` says so."""

    def reset(self, call: ProxiedCall) -> None:
        """The client has taken the call back: ``call.end`` says so."""

    def lost(self, call: ProxiedCall) -> None:
        """The plan has lost the reply: ``call.end`` says so."""
