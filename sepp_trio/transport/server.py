"""The server's role: a module of its own, as whoever only calls does without it."""

from ._server import GrpcServer as GrpcServer
from ._server import tls_listener as tls_listener
from ._server_call import ServerCall as ServerCall
from ._server_config import ServerConfig as ServerConfig
