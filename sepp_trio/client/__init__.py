"""The client: connect, and the calls of the service.

``_open`` connects; ``_client`` has the calls; ``_status`` and ``_retry`` judge failures.
"""

from ._client import SeppClient as SeppClient
from ._open import open_client as open_client
from ._status import client_error as client_error
from ._status import lease_error as lease_error
from ._status import reserve_error as reserve_error
