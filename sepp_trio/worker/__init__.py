"""The worker: reserves jobs, runs their handlers, reports what became of them.

``worker`` is the way in; ``_run`` ties it together: ``_poll`` reserves, ``_receive`` reads,
``_slots`` decides what starts, ``job`` runs it, ``_reports`` tells the server, ``_stop`` ends it.
"""

from ._statistics import WorkerStatistics as WorkerStatistics
from .context import JobCtx as JobCtx
from .registry import Handler as Handler
from .signals import run_until_signal as run_until_signal
from .worker import ShutdownHandle as ShutdownHandle
from .worker import Worker as Worker
