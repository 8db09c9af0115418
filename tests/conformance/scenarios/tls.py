"""Section 8.3: the clients over TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.configs import TLS
from tests.conformance.face import NewJob, Refused
from tests.conformance.registry import scenario
from tests.conformance.servers import certificates

if TYPE_CHECKING:
    from tests.conformance.registry import Env


@scenario(config=TLS)
async def a_tls_server_serves_clients_that_know_its_authority(env: Env) -> None:
    env.face = await env.connect(authority=certificates()["ca.crt"])
    queue = env.queue()
    await env.enqueue(NewJob(queue, payload=(bytes(500_000), "raw")))
    job = await env.reserve_one(queue)
    assert job.payload == (bytes(500_000), "raw")
    await env.face.ack(job)


@scenario(config=TLS)
async def a_tls_server_does_not_serve_plaintext_clients(env: Env) -> None:
    with pytest.raises(Refused):
        await env.connect()
