"""`sepp-trio demo`: a real import through producer, server, worker and ack, with a crash in it."""

from ._errors import DemoError as DemoError
from ._progress import Console as Console
from ._report import Report as Report
from ._run import DemoOptions as DemoOptions
from ._run import run_demo as run_demo
