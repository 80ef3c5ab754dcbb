"""A command that somebody runs in a container from outside, with its streams."""

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import struct
import termios
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from koordinator.local.apiserver.pod_streams import STDERR, STDOUT, ExecOptions
from koordinator.local.processes import launch
from koordinator.local.processes.launch import Process

_READ_BYTES = 32 * 1024


class Inside(Protocol):
    """A running container."""

    def start_inside(self, command: list[str], output: tuple[int, int], stdin: str = ...) -> Process:
        """Start another process in it. Raises: StartError, GroupError, OSError."""
        ...


class ExecCommand:
    """Runs as soon as it is made. Raises: as `start_inside`."""

    def __init__(self, inside: Inside, options: ExecOptions) -> None:
        self._outputs: dict[int, int] = {}
        self._input = -1
        self._terminal = -1
        self._open: list[int] = []
        given: list[int] = []
        try:
            self._process = self._start(inside, options, given)
        except BaseException:
            self._close_all()
            raise
        finally:
            for end in given:
                os.close(end)

    def _start(self, inside: Inside, options: ExecOptions, given: list[int]) -> Process:
        if options.tty:
            terminal, slave = os.openpty()
            given.append(slave)
            self._keep(terminal)
            self._terminal = self._outputs[STDOUT] = terminal
            self._input = terminal if options.stdin else -1
            # The first process of the new session opens the terminal by name, and so is controlled by it.
            return inside.start_inside(list(options.command), (slave, slave), os.ttyname(slave))
        outputs = []
        for channel in (STDOUT, STDERR):
            read_end, write_end = os.pipe2(os.O_CLOEXEC)
            given.append(write_end)
            self._outputs[channel] = self._keep(read_end)
            outputs.append(write_end)
        stdin = launch.OPEN_INPUT if options.stdin else launch.NO_INPUT
        process = inside.start_inside(list(options.command), (outputs[0], outputs[1]), stdin)
        self._input = self._keep(process.input) if options.stdin else -1
        return process

    def outputs(self) -> Mapping[int, AsyncIterator[bytes]]:
        return {channel: _pieces(end) for channel, end in self._outputs.items()}

    async def write(self, data: bytes) -> None:
        while data and self._input >= 0:
            try:
                data = data[os.write(self._input, data) :]
            except BlockingIOError:
                await _ready(self._input, to_write=True)
            except OSError:
                self.close_input()

    def close_input(self) -> None:
        end, self._input = self._input, -1
        if end >= 0 and end != self._terminal:
            self._open.remove(end)
            os.close(end)

    def resize(self, columns: int, rows: int) -> None:
        if self._terminal >= 0:
            size = struct.pack("HHHH", min(rows, 0xFFFF), min(columns, 0xFFFF), 0, 0)
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    async def wait(self) -> int:
        return (await self._process.wait()).code

    def abandon(self) -> None:
        self._process.send(signal.SIGKILL)
        self._close_all()

    def _keep(self, end: int) -> int:
        os.set_blocking(end, False)
        self._open.append(end)
        return end

    def _close_all(self) -> None:
        self._input = -1
        while self._open:
            os.close(self._open.pop())


async def _pieces(end: int) -> AsyncIterator[bytes]:
    """Yield what can be read, to the end."""
    while True:
        try:
            data = os.read(end, _READ_BYTES)
        except BlockingIOError:
            await _ready(end)
            continue
        except OSError as error:
            if error.errno == errno.EIO:  # nobody has the terminal open any more
                return
            raise
        if not data:
            return
        yield data


async def _ready(end: int, *, to_write: bool = False) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
    add(end, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        remove(end)
