"""The eight calls as the channel wants them: path, encoder, decoder.

Those of enqueueing read requests and give results; the others read and give records.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import wire
from ..errors import BatchValidationError
from ..transport import Method
from ..types import EnqueueAck, EnqueueRequest, JobRejection
from ..wire import convert, records


class Methods(NamedTuple):
    """One method per call of the service."""

    enqueue_batch: Method[Sequence[EnqueueRequest], list[EnqueueAck | JobRejection]]
    enqueue_atomic: Method[Sequence[EnqueueRequest], list[EnqueueAck] | BatchValidationError]
    reserve: Method[records.ReserveRequest, records.ReserveResponse]
    ack: Method[records.AckRequest, records.AckResponse]
    nack: Method[records.NackRequest, records.NackResponse]
    extend: Method[records.ExtendRequest, records.ExtendResponse]
    drain_dead_letters: Method[records.DrainDeadLettersRequest, records.DrainDeadLettersResponse]
    get_server_info: Method[records.GetServerInfoRequest, records.GetServerInfoResponse]


@functools.cache
def methods() -> Methods:
    """The table, made at the first use: it imports the generated codecs."""

    def method(rpc: str) -> Method[Any, Any]:
        spec = wire.rpcs()[rpc]
        return Method(spec.route, wire.encoder_of(spec.request), wire.decoder_of(spec.response))

    return Methods(
        enqueue_batch=Method(
            wire.rpcs()["EnqueueBatch"].route, convert.encode_requests, convert.decode_results
        ),
        enqueue_atomic=Method(
            wire.rpcs()["EnqueueAtomic"].route, convert.encode_requests, convert.decode_atomic
        ),
        reserve=method("Reserve"),
        ack=method("Ack"),
        nack=method("Nack"),
        extend=method("Extend"),
        drain_dead_letters=method("DrainDeadLetters"),
        get_server_info=method("GetServerInfo"),
    )
