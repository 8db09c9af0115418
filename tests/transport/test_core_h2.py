"""Our core against h2, in both roles, whatever happens in whatever order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from .h2_oracle import ClientWorld, ServerWorld

indices = st.integers(0, 20)
sizes = st.one_of(
    st.integers(0, 100),
    st.sampled_from([16378, 16379, 16380, 16384, 65530, 65531, 65535, 65536, 200_000]),
)
moves = st.one_of(st.integers(1, 40), st.sampled_from([9, 16384, 16393, 1 << 20]))
windows = st.sampled_from([0, 1, 1000, 16384, 65535, 1 << 20])


def ops(*others: st.SearchStrategy[tuple[object, ...]]) -> st.SearchStrategy[list[tuple]]:  # type: ignore[type-arg]
    up = st.tuples(st.just("up"), moves)
    down = st.tuples(st.just("down"), moves)
    return st.lists(st.one_of(up, down, *others), max_size=60)


def op(name: str, *args: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.tuples(st.just(name), *args)


@given(
    ops(
        op("call", sizes, st.booleans()),
        op("call", sizes, st.booleans()),
        op("cancel", indices),
        op("answer", indices, sizes),
        op("reset", indices),
        op("window", windows),
        op("limit", st.integers(0, 4)),
        op("ping"),
        op("goaway"),
    )
)
def test_the_client_role_agrees_with_h2(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    world = ClientWorld()
    pings = 0
    for name, *args in steps:
        if name == "call":
            world.call(*args)
        elif name == "cancel":
            world.cancel(*args)
        elif name == "up":
            world.move_up(*args)
        elif name == "down":
            world.move_down(*args)
        elif name == "answer":
            world.answer(*args)
        elif name == "reset":
            world.reset(*args)
        elif name == "window":
            world.peer.settings({4: args[0]})
        elif name == "limit":
            world.peer.settings({3: args[0]})
        elif name == "ping":
            world.peer.connection.ping(b"12345678")
            pings += 1
        elif name == "goaway" and world.goaway_last is None:
            world.goaway()
    world.settle()

    sent = {call.id: call for call in world.calls if call.id}
    for number, body in world.peer.ended.items():
        assert body[5:] == sent[number].message
    for call in world.calls:
        assert len(call.outcomes) <= 1
        if call in world.cancelled:
            assert not call.outcomes
        elif call.outcomes and isinstance(call.outcomes[0], bytes):
            reply = call.outcomes[0]
            assert reply in (call.message[:1] * len(reply), b"")
        elif not call.outcomes:
            # Only a goodbye leaves a call without a word: it still waits.
            assert world.goaway_last is not None
            assert call in world.waiting[0] or call in world.waiting[1]
    if world.goaway_last is None:
        assert not any(world.waiting)
    assert not world.core.streams
    assert world.peer.pongs == pings
    # Both ends count the same windows.
    ours, theirs = world.core, world.peer.connection
    assert ours.send_window == theirs.inbound_flow_control_window
    assert ours._receive_window == theirs.outbound_flow_control_window
    if world.goaway_last is None:
        assert theirs.open_inbound_streams == 0


@given(
    ops(
        op("call", sizes),
        op("call", sizes),
        op("cancel", indices),
        op("answer", indices, sizes, st.sampled_from(["respond", "refuse", "reset"])),
        op("window", windows),
        op("ping"),
        op("drain"),
        op("drained"),
    )
)
def test_the_server_role_agrees_with_h2(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    world = ServerWorld()
    pings = 0
    for name, *args in steps:
        if name == "call":
            world.call(*args)
        elif name == "cancel":
            world.cancel(*args)
        elif name == "up":
            world.move_up(*args)
        elif name == "down":
            world.move_down(*args)
        elif name == "answer":
            world.answer(*args)
        elif name == "window":
            world.peer.settings({4: args[0]})
        elif name == "ping":
            world.peer.connection.ping(b"12345678")
            pings += 1
        elif name == "drain":
            world.core.start_drain()
        elif name == "drained":
            world.core.finish_drain()
    world.settle()

    last = world.goaways[-1] if world.goaways else 1 << 31
    assert world.goaways == sorted(world.goaways, reverse=True)
    for number in world.sent:
        if number > last:
            assert number not in world.done
            continue
        if number in world.peer.ended:
            assert world.peer.ended[number] == world.done[number]
        elif number in world.peer.resets and world.done.get(number) == 2:
            assert world.peer.resets[number] in (2, 8)
        else:
            assert world.peer.resets[number] == 8
    assert not world.lost & world.written
    assert not world.core.streams
    assert world.peer.pongs == pings
    assert world.core.finished == bool(world.goaways and world.goaways[-1] < (1 << 31) - 1)
    ours, theirs = world.core, world.peer.connection
    assert ours.send_window == theirs.inbound_flow_control_window
    assert ours._receive_window == theirs.outbound_flow_control_window
