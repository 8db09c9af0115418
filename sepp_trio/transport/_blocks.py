"""What a decoded header block says to gRPC: a request's or an answer's fields."""

from __future__ import annotations

from ._headers import MAX_HEADER_LIST, Fields, list_size

_CONNECTION_FIELDS = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)


def _texts(fields: Fields) -> tuple[tuple[str, str], ...]:
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields)


def _common_fault(fields: Fields) -> str | None:
    """Why HTTP/2 forbids these fields, or None.  Sizes are judged by the roles."""
    regular = False
    for name, value in fields:
        if name[:1] == b":":
            if regular:
                return "a pseudo-header after other headers"
        else:
            regular = True
            if name != name.lower() or not name:
                return "a header name with capitals, or without any letter"
            if name in _CONNECTION_FIELDS or (name == b"te" and value != b"trailers"):
                return "a header that belongs to HTTP/1 connections"
    return None


class Answer:
    """One header block of an answer: its headers or its trailers.

    ``fault`` says why the block is malformed; ``status`` is the HTTP status
    (None in trailers), ``grpc_status`` the number in ``grpc-status``: None
    without one, -1 if it is no number.  ``opens`` and ``closes``: it is the
    first or the last block of an answer without an error.
    """

    __slots__ = (
        "closes",
        "fault",
        "fields",
        "grpc_message",
        "grpc_status",
        "is_grpc",
        "opens",
        "status",
    )

    def __init__(self, fields: Fields) -> None:
        self.fields = _texts(fields)
        self.fault = _common_fault(fields)
        if list_size(fields) > MAX_HEADER_LIST:
            self.fault = "more headers than we allow"
        self.status: int | None = None
        self.grpc_status: int | None = None
        self.grpc_message = ""
        self.is_grpc = False
        content_type = ""
        for name, value in self.fields:
            if name == ":status":
                if self.status is not None or not (value.isdecimal() and len(value) == 3):
                    self.fault = self.fault or "a bad :status"
                else:
                    self.status = int(value)
            elif name == "grpc-status":
                self.grpc_status = int(value) if _is_small_number(value) else -1
            elif name == "grpc-message":
                self.grpc_message = value
            elif name == "content-type":
                content_type = value
            elif name[:1] == ":":
                self.fault = self.fault or "an unknown pseudo-header"
        self.is_grpc = self.status == 200 and content_type.startswith("application/grpc")
        self.opens = self.is_grpc and self.fault is None
        self.closes = self.status is None and self.grpc_status == 0 and self.fault is None


class Request:
    """The header block of a request (or the trailers that end one).

    ``fault`` says why the block is malformed.  ``too_large`` is set when the
    list is larger than we announced; the request is then to be refused.
    """

    __slots__ = (
        "content_length",
        "encoding",
        "fault",
        "fields",
        "has_pseudo",
        "method",
        "path",
        "timeout",
        "too_large",
    )

    def __init__(self, fields: Fields) -> None:
        self.fields = _texts(fields)
        self.too_large = list_size(fields) > MAX_HEADER_LIST
        self.content_length: int | None = None
        self.timeout: str | None = None
        self.encoding: str | None = None
        fault = _common_fault(fields)
        pseudo: dict[str, str] = {}
        for name, value in self.fields:
            if name[:1] == ":":
                if name in pseudo or name not in (":method", ":scheme", ":path", ":authority"):
                    fault = fault or f"a second or unknown {name}"
                pseudo[name] = value
            elif name == "grpc-timeout":
                self.timeout = value
            elif name == "grpc-encoding":
                self.encoding = value
            elif name == "content-length":
                if value.isdecimal() and value.isascii() and len(value) < 19:
                    self.content_length = int(value)
                else:
                    fault = fault or "a bad content-length"
        self.method = pseudo.get(":method", "")
        self.path = pseudo.get(":path", "")
        self.has_pseudo = bool(pseudo)
        if pseudo and not (self.method and self.path and pseudo.get(":scheme")):
            fault = fault or "a request without :method, :scheme or :path"
        self.fault = fault


def _is_small_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10
