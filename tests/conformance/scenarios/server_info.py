"""Sections 1.6, 7, 8.2: what the server says of itself, and who may call it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.conformance.configs import KEYS, LIMITS, NO_KEYS, RETAINING, STRICT
from tests.conformance.face import NewJob, refused
from tests.conformance.registry import scenario
from tests.conformance.wire import NOBODY, RPCS, milliseconds, pb, request_class, reserve_request

if TYPE_CHECKING:
    from tests.conformance.registry import Env

DEFAULTS: dict[str, object] = {
    "server_version": "0.1.1",
    "supported_protocol_versions": ["v1"],
    "restricts_encodings": False,
    "allowed_encodings": [],
    "max_payload_bytes": 1048576,
    "max_custom_entries": 64,
    "max_custom_total_bytes": 16384,
    "max_custom_key_bytes": 256,
    "max_queue_name_bytes": 512,
    "max_job_type_bytes": 256,
    "max_idempotency_key_bytes": 256,
    "max_schedule_horizon": 2592000.0,
    "max_enqueue_batch": 256,
    "max_reserve_batch": 256,
    "max_reserve_queues": 32,
    "max_wait_timeout": 300.0,
    "max_lease_duration": 300.0,
    "strict_queues": False,
    "dead_letter_retention_enabled": False,
}


def _requests() -> list[tuple[str, Any]]:
    """A request of every RPC that a server without keys would look at."""
    requests = {rpc: request_class(rpc)() for rpc in RPCS}
    for rpc in ("EnqueueBatch", "EnqueueAtomic"):
        requests[rpc].jobs.add(queue="q", job_type="t")
    requests["Reserve"] = reserve_request("q")
    for rpc in ("Ack", "Nack", "Extend"):
        requests[rpc] = request_class(rpc)(job_id=NOBODY, attempt=1)
    requests["Extend"].lease_duration.seconds = 1
    return list(requests.items())


@scenario()
async def an_unconfigured_server_tells_its_defaults(env: Env) -> None:
    info = dict(await env.face.info())
    assert isinstance(info.pop("server_time"), int)
    # The embedded server has a version of its own; the field must be there and not empty.
    assert info.pop("server_version")
    assert info == {k: v for k, v in DEFAULTS.items() if k != "server_version"}


@scenario()
async def the_server_s_time_is_now_in_whole_milliseconds(env: Env) -> None:
    before = time.time() * 1000
    response = await env.face.call("GetServerInfo", pb.GetServerInfoRequest())
    assert before - 5 < milliseconds(response.server_time) < time.time() * 1000 + 5
    assert response.server_time.nanos % 1_000_000 == 0


@scenario(config=LIMITS)
async def configured_limits_show_and_overrides_do_not(env: Env) -> None:
    info = await env.face.info()
    expected = {
        "restricts_encodings": True,
        "allowed_encodings": ["json", "text"],
        "max_payload_bytes": 32,
        "max_custom_entries": 3,
        "max_custom_total_bytes": 40,
        "max_custom_key_bytes": 8,
        "max_queue_name_bytes": 128,
        "max_job_type_bytes": 16,
        "max_idempotency_key_bytes": 16,
        "max_schedule_horizon": 60.0,
        "max_enqueue_batch": 20,
        "max_reserve_batch": 3,
        "max_reserve_queues": 2,
        "max_wait_timeout": 0.4,
        "max_lease_duration": 20.0,
    }
    assert {name: info[name] for name in expected} == expected


@scenario(config=RETAINING)
async def retention_shows_in_the_server_info(env: Env) -> None:
    assert (await env.face.info())["dead_letter_retention_enabled"] is True


@scenario(config=STRICT)
async def strictness_shows_in_the_server_info(env: Env) -> None:
    assert (await env.face.info())["strict_queues"] is True


@scenario()
async def any_queue_can_be_used_when_the_server_is_not_strict(env: Env) -> None:
    queue = env.queue()
    assert await env.face.reserve([queue]) == []
    await env.enqueue(NewJob(queue))
    await env.face.ack(await env.reserve_one(queue))


@scenario()
async def without_configured_keys_the_authorization_is_not_looked_at(env: Env) -> None:
    face = await env.connect(api_key="whatever")
    await face.info()


@scenario(config=KEYS)
async def every_configured_key_is_accepted(env: Env) -> None:
    for key in ("first-key", "second-key"):
        face = await env.connect(api_key=key)
        await face.info()
        queue = env.queue()
        await face.enqueue_batch([NewJob(queue)])
        (job,) = await face.reserve([queue])
        await face.ack(job)


@scenario(config=KEYS)
async def every_call_without_a_key_is_unauthenticated(env: Env) -> None:
    face = await env.connect()
    for rpc, request in _requests():
        with refused("UNAUTHENTICATED"):
            await face.call(rpc, request)


@scenario(config=KEYS)
async def the_typed_calls_say_unauthenticated_too(env: Env) -> None:
    for key in ("wrong", "first-key-and-more", "First-key"):
        face = await env.connect(api_key=key)
        with refused("UNAUTHENTICATED"):
            await face.info()
        with refused("UNAUTHENTICATED"):
            await face.reserve(["q"])
        with refused("UNAUTHENTICATED"):
            await face.enqueue_batch([NewJob("q")])


@scenario(config=KEYS)
async def only_bearer_one_space_and_the_key_is_accepted(env: Env) -> None:
    face = await env.connect()
    bad = ["first-key", "bearer first-key", "BEARER first-key", "Basic first-key", "Bearer"]
    bad += ["Bearer first-keyy", "Bearer  first-key", "Bearer first", "Bearer wrong"]
    for value in bad:
        with refused("UNAUTHENTICATED"):
            await _info(env, face, ("authorization", value))
    await _info(env, face, ("authorization", "Bearer first-key"))


@scenario(config=KEYS)
async def only_the_first_authorization_counts(env: Env) -> None:
    face = await env.connect()
    good, bad = ("authorization", "Bearer second-key"), ("authorization", "Bearer wrong")
    await _info(env, face, good, bad)
    with refused("UNAUTHENTICATED"):
        await _info(env, face, bad, good)


@scenario(config=KEYS)
async def the_key_is_checked_before_the_message_and_the_method(env: Env) -> None:
    face = await env.connect()
    good = (("authorization", "Bearer first-key"),)
    service = "/sepp.v1.QueueService"
    with refused("UNAUTHENTICATED"):
        await face.call_bytes(f"{service}/Ack", b"\xff\xff")
    with refused("INTERNAL"):
        await face.call_bytes(f"{service}/Ack", b"\xff\xff", metadata=good)
    with refused("UNAUTHENTICATED"):
        await face.call_bytes(f"{service}/NoSuchMethod", b"")
    with refused("UNIMPLEMENTED"):
        await face.call_bytes(f"{service}/NoSuchMethod", b"", metadata=good)
    with refused("UNIMPLEMENTED"):
        await face.call_bytes("/no.such.Service/Method", b"")


@scenario(config=NO_KEYS)
async def an_empty_list_of_keys_refuses_everyone(env: Env) -> None:
    face = await env.connect()
    for metadata in ((), (("authorization", "Bearer "),), (("authorization", "Bearer x"),)):
        with refused("UNAUTHENTICATED"):
            await face.call("GetServerInfo", pb.GetServerInfoRequest(), metadata=metadata)


async def _info(env: Env, face: Any, *metadata: tuple[str, str]) -> None:
    await face.call("GetServerInfo", pb.GetServerInfoRequest(), metadata=metadata)
