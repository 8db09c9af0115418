"""Hypothesis strategies for what handlers, workers and producers meet; needs Hypothesis.

A field that is given as a value is that value, a field that is given as a strategy is drawn from
it: ``enqueue_requests(queue="emails", priority=st.integers(0, 3))``.
"""

from ._draw import Drawn as Drawn
from ._jobs import JobFields as JobFields
from ._jobs import RequestFields as RequestFields
from ._jobs import enqueue_requests as enqueue_requests
from ._jobs import jobs as jobs
from ._payloads import custom_maps as custom_maps
from ._payloads import payloads as payloads
from ._payloads import trace_contexts as trace_contexts
from ._plans import fault_plans as fault_plans
