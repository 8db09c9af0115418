"""Client, worker and embedded server of the sepp job queue, for Trio.

The embedded server is imported when something of it is first used: who works for a real one
should not wait for it.
"""

from typing import TYPE_CHECKING

from ._version import __version__ as __version__
from .client import SeppClient as SeppClient
from .client import open_client as open_client
from .errors import AttemptMismatchError as AttemptMismatchError
from .errors import BatchResultCountMismatchError as BatchResultCountMismatchError
from .errors import BatchValidationError as BatchValidationError
from .errors import BrokerError as BrokerError
from .errors import ClientClosedError as ClientClosedError
from .errors import ClientError as ClientError
from .errors import ConfigError as ConfigError
from .errors import ConnectError as ConnectError
from .errors import DuplicateHandlerError as DuplicateHandlerError
from .errors import EmptyBatchError as EmptyBatchError
from .errors import HandlerError as HandlerError
from .errors import InvalidApiKeyError as InvalidApiKeyError
from .errors import InvalidRequestError as InvalidRequestError
from .errors import JobNotFoundError as JobNotFoundError
from .errors import JobRejectedError as JobRejectedError
from .errors import LeaseError as LeaseError
from .errors import LeaseLostError as LeaseLostError
from .errors import MalformedResponseError as MalformedResponseError
from .errors import MalformedServerInfoError as MalformedServerInfoError
from .errors import OverloadedError as OverloadedError
from .errors import ReserveError as ReserveError
from .errors import SeppError as SeppError
from .errors import ServerInternalError as ServerInternalError
from .errors import StoreError as StoreError
from .errors import TransportError as TransportError
from .errors import UnauthenticatedError as UnauthenticatedError
from .errors import UnexpectedStatusError as UnexpectedStatusError
from .errors import UnknownQueuesError as UnknownQueuesError
from .lease import Lease as Lease
from .retry import RetryPolicy as RetryPolicy
from .transport import ChannelStatistics as ChannelStatistics
from .types import CustomEntriesTooMany as CustomEntriesTooMany
from .types import CustomKeyTooLong as CustomKeyTooLong
from .types import CustomMapTooLarge as CustomMapTooLarge
from .types import DeadLetterCause as DeadLetterCause
from .types import DeadLetterRecord as DeadLetterRecord
from .types import Duration as Duration
from .types import EncodingNotAllowed as EncodingNotAllowed
from .types import EnqueueAck as EnqueueAck
from .types import EnqueueRequest as EnqueueRequest
from .types import IdempotencyKeyTooLong as IdempotencyKeyTooLong
from .types import InvalidRequest as InvalidRequest
from .types import Job as Job
from .types import JobRejection as JobRejection
from .types import JobTypeNameTooLong as JobTypeNameTooLong
from .types import JobTypeNotAllowed as JobTypeNotAllowed
from .types import JobValidationError as JobValidationError
from .types import LeasedJob as LeasedJob
from .types import Payload as Payload
from .types import PayloadTooLarge as PayloadTooLarge
from .types import Primitive as Primitive
from .types import Priority as Priority
from .types import QueueClosing as QueueClosing
from .types import QueueFull as QueueFull
from .types import QueueNameTooLong as QueueNameTooLong
from .types import RawDeadLetter as RawDeadLetter
from .types import ReserveOptions as ReserveOptions
from .types import RetryDirective as RetryDirective
from .types import ScheduledTooFar as ScheduledTooFar
from .types import ServerInfo as ServerInfo
from .types import TraceContext as TraceContext
from .types import UnknownQueue as UnknownQueue
from .types import UnknownRejection as UnknownRejection
from .worker import Handler as Handler
from .worker import JobCtx as JobCtx
from .worker import ShutdownHandle as ShutdownHandle
from .worker import Worker as Worker
from .worker import WorkerStatistics as WorkerStatistics
from .worker import run_until_signal as run_until_signal

if TYPE_CHECKING:
    from .broker import ApiKey as ApiKey
    from .broker import Broker as Broker
    from .broker import BrokerConfig as BrokerConfig
    from .broker import BrokerStatistics as BrokerStatistics
    from .broker import LimitsConfig as LimitsConfig
    from .broker import ListenConfig as ListenConfig
    from .broker import QueueConfig as QueueConfig
    from .broker import ServerConfig as ServerConfig
    from .broker import StorageConfig as StorageConfig
    from .broker import open_broker as open_broker
else:
    _BROKER = frozenset(
        {
            "ApiKey",
            "Broker",
            "BrokerConfig",
            "BrokerStatistics",
            "LimitsConfig",
            "ListenConfig",
            "QueueConfig",
            "ServerConfig",
            "StorageConfig",
            "open_broker",
        }
    )

    # What "import *" gives: without it, no names that come later.
    __all__ = [
        name
        for name, value in [*globals().items()]
        if not (name.startswith("_") or name == "TYPE_CHECKING" or hasattr(value, "__spec__"))
    ]
    __all__ += _BROKER

    def __getattr__(name):
        if name not in _BROKER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import broker

        return getattr(broker, name)

    def __dir__():
        return sorted(_BROKER | globals().keys())
