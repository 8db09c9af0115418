"""Sections 8.5, 8.6: an orderly end, and what is still there afterwards."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tests.conformance.configs import RETAINING
from tests.conformance.face import Ack, NewJob, Refused, refused
from tests.conformance.registry import LATE, scenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.face import Delivery
    from tests.conformance.registry import Env


async def _stop(env: Env) -> int:
    env.server.terminate()
    return await env.loop.in_thread(env.server.wait)


async def _restart(env: Env, config: str | None = None) -> None:
    await _stop(env)
    if config is not None:
        env.server.configure(config)
    await env.loop.in_thread(env.server.start)
    env.face = await env.connect()


@scenario(own_server=True)
async def sigterm_answers_a_waiting_reserve_empty_at_once_and_exits_with_zero(env: Env) -> None:
    async def wait() -> list[Delivery]:
        return await env.face.reserve([env.queue()], wait=20.0)

    waiting = [env.start(wait) for _ in range(3)]
    await env.sleep(0.4)
    started = time.monotonic()
    assert await _stop(env) == 0
    for task in waiting:
        assert await task.result() == []
    assert time.monotonic() - started < 15.0


@scenario(own_server=True)
async def a_server_that_has_ended_cannot_be_reached(env: Env) -> None:
    await env.face.info()
    await _stop(env)
    with refused("UNAVAILABLE"):
        await env.face.info()


@scenario(own_server=True)
async def an_enqueue_that_was_acknowledged_survives_sigterm_under_load(env: Env) -> None:
    await _load(env, env.server.terminate)


@scenario(config='[storage]\npersist_mode = "sync_all"\n', own_server=True)
async def an_enqueue_that_was_acknowledged_survives_sigkill_under_load(env: Env) -> None:
    await _load(env, env.server.kill)


async def _load(env: Env, stop: Callable[[], None]) -> None:
    queue = env.queue()
    acknowledged: set[str] = set()

    async def produce() -> None:
        while True:
            try:
                (result,) = await env.face.enqueue_batch([NewJob(queue)])
            except Refused:
                return
            assert isinstance(result, Ack)
            acknowledged.add(result.job_id)

    producers = [env.start(produce) for _ in range(8)]
    await env.eventually(lambda: len(acknowledged) > 20)
    await env.loop.in_thread(stop)
    if stop == env.server.terminate:
        await env.loop.in_thread(env.server.wait)
    await env.loop.in_thread(env.server.start)
    env.face = await env.connect()
    for task in producers:
        task.cancel()
        await task.settled()
    stored: set[str] = set()
    while jobs := await env.face.reserve([queue], max_jobs=256):
        stored |= {job.id for job in jobs}
    assert acknowledged <= stored


@scenario(config=RETAINING, own_server=True)
async def a_restart_keeps_everything(env: Env) -> None:
    ready, later, delayed, held, lapsing, dead = (env.queue(label) for label in "abcdef")
    trace = ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")
    due = time.time() + 3.0
    at = datetime.fromtimestamp(round(due, 3), tz=UTC)
    payload = (bytes(range(256)), "raw")
    await env.enqueue(
        NewJob(ready, "kind", payload, "key", 7, 9, {"a": 1, "b": "ä", "c": True}, trace),
        NewJob(later, scheduled_at=at),
        NewJob(delayed),
        NewJob(held),
        NewJob(lapsing),
        NewJob(dead, payload=payload),
    )
    await env.face.nack(await env.reserve_one(delayed), 3.0)
    holder = await env.reserve_one(held, lease=30.0)
    lapsed = await env.reserve_one(lapsing, lease=1.0)
    await env.face.nack(await env.reserve_one(dead), "dead_letter", "why")
    await _stop(env)
    await env.sleep(max(0.0, lapsed.lease_expires_ms / 1000 - time.time()) + 0.1)
    await env.loop.in_thread(env.server.start)
    env.face = await env.connect()

    # The key is still taken.
    (again,) = await env.face.enqueue_batch([NewJob(ready, key="key")])
    (job,) = await env.face.reserve([ready])
    assert again == Ack(job.id, True)
    assert (job.job_type, job.payload, job.priority) == ("kind", payload, 7)
    assert (job.max_attempts, job.attempt, job.trace) == (9, 1, trace)
    assert job.custom == {"a": 1, "b": "ä", "c": True}
    # A lease still running is honoured; one that ended meanwhile is the next attempt.
    await env.face.extend(holder, 10.0)
    await env.face.ack(holder)
    next_one = await env.reserve_one(lapsing, wait=2.0)
    assert (next_one.id, next_one.attempt) == (lapsed.id, 2)
    with refused("FAILED_PRECONDITION"):
        await env.face.ack(lapsed)
    (record,) = await env.face.drain(dead)
    assert (record.cause, record.last_reason, record.payload) == ("rejected", "why", payload)
    # Timers go on.
    assert (await env.reserve_one(later, wait=10.0)).attempt == 1
    assert time.time() > due - 0.05  # how promptly depends on when the server was back
    assert (await env.reserve_one(delayed, wait=10.0)).attempt == 2


@scenario(config=RETAINING, own_server=True)
async def what_was_acked_or_drained_stays_gone_after_a_restart(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue), NewJob(queue))
    first = await env.reserve_one(queue)
    second = await env.reserve_one(queue)
    await env.face.ack(first)
    await env.face.nack(second, "dead_letter")
    assert len(await env.face.drain(queue)) == 1
    await _restart(env)
    assert await env.is_empty(queue)
    assert await env.face.drain(queue) == []
    for job in (first, second):
        with refused("NOT_FOUND"):
            await env.face.ack(job)


@scenario(own_server=True)
async def a_client_goes_on_after_the_server_came_back_at_its_address(env: Env) -> None:
    # The port is chosen anew at each start, so the connection is a new one; the jobs are not.
    queue = env.queue()
    ids = await env.enqueue(*[NewJob(queue)] * 3)
    await _restart(env)
    got = await env.face.reserve([queue], max_jobs=9)
    assert sorted(job.id for job in got) == sorted(ids)
    for job in got:
        await env.face.ack(job)


@scenario(config="[storage]\ndedup_window_ms = 3000\n", own_server=True)
async def a_key_keeps_its_deadline_when_the_window_grows(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue, key="k"))
    began = time.monotonic()
    await _restart(env, "[storage]\ndedup_window_ms = 300000\n")
    await env.sleep(max(0.0, 4.0 - (time.monotonic() - began)))
    await env.enqueue(NewJob(queue, key="k"))


@scenario(config=RETAINING, own_server=True)
async def dead_letters_can_still_be_drained_after_retention_was_turned_off(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue), NewJob(queue))
    await env.face.nack(await env.reserve_one(queue), "dead_letter", "why")
    await _restart(env, "")
    assert (await env.face.info())["dead_letter_retention_enabled"] is False
    await env.face.nack(await env.reserve_one(queue), "dead_letter")
    (dead,) = await env.face.drain(queue, 9)
    assert dead.last_reason == "why"


@scenario(config="[storage]\ndead_letter_retention_ms = 2500\n", own_server=True)
async def the_retention_of_a_dead_letter_goes_on_over_a_restart(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue))
    await env.face.nack(await env.reserve_one(queue), "dead_letter")
    await _restart(env)
    await env.sleep(2.5 + LATE)
    assert await env.face.drain(queue) == []


@scenario(own_server=True)
async def jobs_of_undeclared_queues_outlast_a_strict_server(env: Env) -> None:
    queue = env.queue()
    (job_id,) = await env.enqueue(NewJob(queue))
    await _restart(env, "[server]\nstrict_queues = true\n")
    with refused("FAILED_PRECONDITION"):
        await env.face.reserve([queue])
    await _restart(env, "")
    assert (await env.reserve_one(queue)).id == job_id
