"""The cancellation sweep: a handler cancelled at each of its checkpoints, one history each.

``_record`` finds the checkpoints, ``_strike`` gets to one of them, ``_aftermath`` watches what the
handler does with its cancel, ``_stage`` is the broker and worker that it all happens on, ``_loop``
goes through the histories, ``_report`` tells of them.
"""

from ._entry import cancellation_sweep as cancellation_sweep
from ._report import Cause as Cause
from ._report import Checkpoint as Checkpoint
from ._report import Line as Line
from ._report import SweepFailure as SweepFailure
from ._report import SweepReport as SweepReport
from ._report import SweepRun as SweepRun
from ._report import SweptDelivery as SweptDelivery
