"""The loop that does not wait."""

import asyncio
import time

import pytest

from koordinator.clock import Clock
from koordinator.simulate.virtual_time import Deadlock, run_virtual


def test_a_day_passes_at_once_and_moves_the_clock() -> None:
    async def main(clock: Clock) -> float:
        await asyncio.sleep(86_400)
        return clock.now()

    started = time.perf_counter()
    assert run_virtual(main, epoch_s=1_000.0) == pytest.approx(87_400.0)
    assert time.perf_counter() - started < 1


def test_timers_fire_in_their_order_at_their_time() -> None:
    async def main(clock: Clock) -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        async def sleeper(name: str, pause_s: float) -> None:
            for _ in range(3):
                await asyncio.sleep(pause_s)
                seen.append((name, round(clock.now(), 6)))

        await asyncio.gather(sleeper("a", 10), sleeper("b", 4))
        return seen

    assert run_virtual(main, epoch_s=0.0) == [
        ("b", 4.0), ("b", 8.0), ("a", 10.0), ("b", 12.0), ("a", 20.0), ("a", 30.0),
    ]  # fmt: skip


def test_many_unequal_sleeps_never_fall_behind() -> None:
    async def main(clock: Clock) -> float:
        for step in range(20_000):
            await asyncio.sleep(0.1 + (step % 7) / 3)
        return clock.now()

    expected = sum(0.1 + (step % 7) / 3 for step in range(20_000))
    assert run_virtual(main, epoch_s=0.0) == pytest.approx(expected, abs=0.01)


def test_timeouts_are_virtual_too() -> None:
    async def main(clock: Clock) -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), timeout=3_600)
        return clock.now()

    assert run_virtual(main, epoch_s=0.0) == pytest.approx(3_600)


def test_sockets_are_served_before_time_moves() -> None:
    async def main(clock: Clock) -> tuple[bytes, float]:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readexactly(5))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        answer = await asyncio.wait_for(reader.readexactly(5), timeout=60)
        writer.close()
        server.close()
        return answer, clock.now()

    answer, now_s = run_virtual(main, epoch_s=0.0)
    assert answer == b"hello"
    assert now_s < 1


def test_time_stands_still_while_a_thread_works() -> None:
    async def main(clock: Clock) -> float:
        loop = asyncio.get_running_loop()
        await asyncio.wait_for(loop.run_in_executor(None, time.sleep, 0.05), timeout=1)
        return clock.now()

    assert run_virtual(main, epoch_s=0.0) == 0.0


def test_a_deadlock_is_an_error_not_a_hang() -> None:
    async def main(clock: Clock) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_virtual(main)


def test_a_process_that_closed_its_pipes_may_still_end() -> None:
    async def main(clock: Clock) -> int:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", "exec <&- >&- 2>&-; sleep 0.2; exit 3", stdin=pipe, stdout=pipe, stderr=pipe
        )
        return await process.wait()

    assert run_virtual(main) == 3


def test_a_process_that_cannot_start_leaves_nothing_to_wait_for() -> None:
    async def main(clock: Clock) -> None:
        with pytest.raises(FileNotFoundError):
            await asyncio.create_subprocess_exec("/none")
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_virtual(main)


def test_an_exception_of_the_main_task_reaches_the_caller() -> None:
    async def main(clock: Clock) -> None:
        await asyncio.sleep(5)
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        run_virtual(main)
