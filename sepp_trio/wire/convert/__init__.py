"""Records to domain values (:mod:`sepp_trio.types`) and back.

What a peer sends is judged here and only here: a bad part of an answer costs the job or the call
that it belongs to, and becomes a value or an error that says what was wrong.
"""

from ._dead_letters import cause_from_wire as cause_from_wire
from ._dead_letters import cause_to_wire as cause_to_wire
from ._dead_letters import dead_letter_from_wire as dead_letter_from_wire
from ._enqueue import counted as counted
from ._enqueue import decode_atomic as decode_atomic
from ._enqueue import decode_results as decode_results
from ._enqueue import encode_requests as encode_requests
from ._jobs import MalformedJob as MalformedJob
from ._jobs import job_from_wire as job_from_wire
from ._requests import nack_request_to_wire as nack_request_to_wire
from ._requests import reserve_options_to_wire as reserve_options_to_wire
from ._requests import retry_to_wire as retry_to_wire
from ._responses import atomic_acks_from_wire as atomic_acks_from_wire
from ._responses import batch_results_from_wire as batch_results_from_wire
from ._responses import lease_expiry_from_wire as lease_expiry_from_wire
from ._responses import rejection_from_wire as rejection_from_wire
from ._responses import rejection_to_wire as rejection_to_wire
from ._responses import server_info_from_wire as server_info_from_wire
from ._time import datetime_from_wire as datetime_from_wire
from ._time import datetime_to_wire as datetime_to_wire
from ._time import lease_end_from_wire as lease_end_from_wire
from ._time import seconds_from_wire as seconds_from_wire
from ._time import seconds_to_wire as seconds_to_wire
from ._values import custom_from_wire as custom_from_wire
from ._values import payload_from_wire as payload_from_wire
from ._values import trace_context_from_wire as trace_context_from_wire
from ._values import trace_context_to_wire as trace_context_to_wire
