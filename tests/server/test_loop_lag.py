"""The event loop's lateness is seen."""

import asyncio
import time

from server.loop_lag import watch_loop_lag


def test_work_that_holds_the_loop_up_is_told() -> None:
    async def check() -> None:
        told: list[float] = []
        watching = asyncio.create_task(watch_loop_lag(told.append))
        await asyncio.sleep(0.2)
        time.sleep(0.3)
        await asyncio.sleep(0.3)
        watching.cancel()
        assert max(told) > 0.2

    asyncio.run(check())
