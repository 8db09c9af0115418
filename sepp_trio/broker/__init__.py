"""The embedded server. ``engine`` has the rules, ``store`` the file, ``committer`` brings the
calls of ``service`` to them in batches, ``broker`` opens and closes it all."""

from ..transport.server import ServerConfig as ServerConfig
from .broker import Broker as Broker
from .broker import BrokerStatistics as BrokerStatistics
from .broker import open_broker as open_broker
from .committer import CommitterStatistics as CommitterStatistics
from .config import ApiKey as ApiKey
from .config import BrokerConfig as BrokerConfig
from .config import LimitsConfig as LimitsConfig
from .config import ListenConfig as ListenConfig
from .config import QueueConfig as QueueConfig
from .config import StorageConfig as StorageConfig
