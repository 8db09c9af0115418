"""gRPC over HTTP/2 for Trio: the client's role; :mod:`.server` is the other.

Knows nothing of any service.
"""

from ._calls import PendingCall as PendingCall
from ._channel import Channel as Channel
from ._channel import ChannelStatistics as ChannelStatistics
from ._channel import open_channel as open_channel
from ._dial import tcp_connector as tcp_connector
from ._dial import unix_connector as unix_connector
from ._errors import CallError as CallError
from ._errors import ChannelClosed as ChannelClosed
from ._errors import DialError as DialError
from ._method import Method as Method
