"""``hosted``: what serves a block goes on while the block is cancelled, and both end well."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from sepp_trio.testing import assert_no_leaks
from sepp_trio.testing._hosted import hosted


class Service:
    """Works while its block runs, and takes two seconds to stop."""

    def __init__(self) -> None:
        self.stopped = False

    async def work(self) -> None:
        """Take a second."""
        await trio.sleep(1)
        assert not self.stopped

    @asynccontextmanager
    async def opened(
        self, *, entering: Exception | None = None, leaving: Exception | None = None
    ) -> AsyncIterator[Service]:
        """Open it, or fail."""
        await trio.sleep(1)
        if entering is not None:
            raise entering
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 10_000)
            yield self
            nursery.cancel_scope.cancel()
        await trio.sleep(2)
        self.stopped = True
        if leaving is not None:
            raise leaving


async def test_it_is_open_as_long_as_the_block_runs() -> None:
    service = Service()
    async with assert_no_leaks():
        async with hosted(service.opened()) as same:
            assert same is service
            await service.work()
        assert service.stopped


@pytest.mark.parametrize("after", [0, 0.5, 1.5])
async def test_a_cancel_leaves_it_open_until_the_block_has_cleaned_up(after: float) -> None:
    service = Service()
    entered = False
    async with assert_no_leaks():
        with trio.CancelScope() as scope:
            scope.deadline = trio.current_time() + after
            async with hosted(service.opened()):
                entered = True
                try:
                    await trio.sleep_forever()
                finally:
                    with trio.CancelScope(shield=True):
                        await service.work()
        assert scope.cancelled_caught
        assert service.stopped
        assert entered == (after > 1)


async def test_an_exception_of_the_block_comes_out_as_it_is() -> None:
    error = ValueError("the block's")

    async def fail(service: Service) -> None:
        async with hosted(service.opened(leaving=KeyError())):
            raise error

    async with assert_no_leaks():
        with pytest.raises(ValueError, match="the block's") as caught:
            await fail(Service())
    assert caught.value is error


async def test_an_exception_while_cancelled_comes_out_as_it_is() -> None:
    error = ValueError("the block's")

    async def fail(service: Service) -> None:
        with trio.move_on_after(2):
            async with hosted(service.opened()):
                try:
                    await trio.sleep_forever()
                finally:
                    raise error

    async with assert_no_leaks():
        with pytest.raises(ValueError, match="the block's") as caught:
            await fail(Service())
    assert caught.value is error


@pytest.mark.parametrize("when", ["entering", "leaving"])
async def test_an_exception_of_the_service_comes_out_as_it_is(when: str) -> None:
    error = OSError("the service's")

    async def run(service: Service) -> None:
        async with hosted(service.opened(**{when: error})):  # type: ignore[arg-type]
            assert when == "leaving"

    async with assert_no_leaks():
        with pytest.raises(OSError, match="the service's") as caught:
            await run(Service())
    assert caught.value is error


async def test_a_service_that_breaks_ends_the_block() -> None:
    @asynccontextmanager
    async def breaks() -> AsyncIterator[None]:
        async def crash() -> None:
            await trio.sleep(5)
            raise OSError("crashed")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(crash)
            yield
            nursery.cancel_scope.cancel()

    async def run() -> None:
        async with hosted(breaks()):
            await trio.sleep_forever()

    async with assert_no_leaks():
        with pytest.raises(ExceptionGroup) as caught:
            await run()
    assert caught.group_contains(OSError, match="crashed")
    assert trio.current_time() == 5
