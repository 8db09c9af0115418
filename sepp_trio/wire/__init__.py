"""The wire contract: records, their codec, and the way to domain values and back."""

from . import records as records
from ._codec import SeppCodec as SeppCodec
from ._codec import decode as decode
from ._codec import decoder_of as decoder_of
from ._codec import encode as encode
from ._codec import encoder_of as encoder_of
from ._errors import DecodeError as DecodeError
from ._errors import EncodeError as EncodeError
from ._parts import custom_of as custom_of
from ._parts import encode_custom as encode_custom
from ._parts import encode_trace_context as encode_trace_context
from ._parts import trace_context_of as trace_context_of
from ._primitives import Slice as Slice
from ._record import Record as Record
from ._service import RpcSpec as RpcSpec
from ._service import rpcs as rpcs
