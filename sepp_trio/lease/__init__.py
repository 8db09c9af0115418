"""Leases on Trio's clock: the server's time, the keeper of beats, and ``hold``.

For the client: one :class:`LeaseKeeper` per channel, its ``run`` in the client's nursery. Hand
it every answer to GetServerInfo (``take_server_info``); ask for one before the first reserve if
``keeper.clock.known`` is false. ``keeper.clock.grant(...).end`` is a reserved job's
``lease_deadline``. Ack, nack and extend of a job that ``keeper.find`` knows go through what it
returns (as :class:`Lease` around it), so that its heartbeat knows of them.
"""

from ._held import LEASE_LOST as LEASE_LOST
from ._held import TIMED_OUT as TIMED_OUT
from ._held import Answer as Answer
from ._held import HeldLease as HeldLease
from ._held import Terms as Terms
from ._held import epoch_seconds as epoch_seconds
from ._states import Beats as Beats
from ._states import Phase as Phase
from ._states import Verdict as Verdict
from ._wheel import Timer as Timer
from ._wheel import TimerWheel as TimerWheel
from .clock import Grant as Grant
from .clock import ServerClock as ServerClock
from .keeper import LeaseKeeper as LeaseKeeper
from .lease import Lease as Lease
from .lease import hold as hold
