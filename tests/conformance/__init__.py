"""The conformance suite: what a sepp server does, stated once, shown on every server.

Scenarios (scenarios/) are coroutines that know neither the server nor the client library nor the
event loop; they see a `Face` (face.py) and an `Env` (registry.py). test_conformance.py runs each
of them on the embedded server and, where there is one, on the real server; with our client under
Trio and with sepp-py under asyncio. test_transport.py does the same for the transport, frame by
frame (probes/), test_startup.py for configurations, and test_random_operations.py puts random
operations to both servers (walk.py says what may differ). What is left out stands in
unobserved.py.

    pytest tests/conformance -k real-sepp_py        # one pair of server and driver
    pytest tests/conformance -k "embedded and fenced_off"

The real server is found by SEPP_BIN, or as `sepp` on PATH.
"""
