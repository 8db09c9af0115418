"""The kit for tests of handlers, and of this package: real parts, virtual time, faults on purpose.

``_run_handler`` delivers one job and watches it (``_observed``), ``_sweep`` cancels a handler
everywhere. ``_recording`` is a broker with the ``_history`` of every job, which its ``_recorder``
keeps. ``_faults`` says what is to go wrong, ``_proxy`` does it on the way between a client and
any server, ``_server`` to an embedded server itself. ``_leaks`` finds what is left, ``_threads``
has the clock wait. What needs Hypothesis is in ``strategies`` and ``stateful``, to be imported by
name.
"""

from ._call_log import CallLog as CallLog
from ._faults import Answer as Answer
from ._faults import BlackHole as BlackHole
from ._faults import Delay as Delay
from ._faults import DropConnection as DropConnection
from ._faults import Fail as Fail
from ._faults import Fault as Fault
from ._faults import FaultPlan as FaultPlan
from ._faults import JumpServerClock as JumpServerClock
from ._faults import LoseLease as LoseLease
from ._faults import LoseReply as LoseReply
from ._faults import RestartServer as RestartServer
from ._faults import random_network_plan as random_network_plan
from ._faults import random_server_plan as random_server_plan
from ._history import JobEvent as JobEvent
from ._history import JobHistory as JobHistory
from ._history import Jobs as Jobs
from ._leaks import assert_no_leaks as assert_no_leaks
from ._outcomes import Acked as Acked
from ._outcomes import DeadLettered as DeadLettered
from ._outcomes import Extend as Extend
from ._outcomes import LeaseLost as LeaseLost
from ._outcomes import Outcome as Outcome
from ._outcomes import Retried as Retried
from ._proxied import ProxiedCall as ProxiedCall
from ._proxy import FaultProxy as FaultProxy
from ._proxy import Happening as Happening
from ._proxy import Observer as Observer
from ._proxy import ServerControls as ServerControls
from ._proxy import open_fault_proxy as open_fault_proxy
from ._recorder import Recorder as Recorder
from ._recording import RecordingBroker as RecordingBroker
from ._recording import open_recording_broker as open_recording_broker
from ._run_handler import run_handler as run_handler
from ._server import FragileServer as FragileServer
from ._server import open_fragile_server as open_fragile_server
from ._starter import WorkerOptions as WorkerOptions
from ._starter import WorkerStarter as WorkerStarter
from ._starter import open_worker_starter as open_worker_starter
from ._sweep import Cause as Cause
from ._sweep import Checkpoint as Checkpoint
from ._sweep import Line as Line
from ._sweep import SweepFailure as SweepFailure
from ._sweep import SweepReport as SweepReport
from ._sweep import SweepRun as SweepRun
from ._sweep import SweptDelivery as SweptDelivery
from ._sweep import cancellation_sweep as cancellation_sweep
from ._threads import clock_waits_for_threads as clock_waits_for_threads
