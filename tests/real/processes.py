"""Programs that a test starts: their words go to a file, they end with the test, and free ports for them."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

STOP_S = 30.0
_POLL_S = 0.1
_TAIL = 3_000
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


class Program:
    """A running program; what it says is in `log`."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        # An installation has compiled bytecode: compiling at each start would cost half a second of CPU.
        self._environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", **(environment or {})}
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as output:
            return subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=end_with_us,
            )

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, holds: Callable[[], object], seconds: float, what: str) -> None:
        """Until it holds. A program that ended meanwhile, or took longer, fails with its last words."""
        deadline = time.monotonic() + seconds
        while not holds():
            code = self.process.poll()
            assert code is None, f"{self.name} ended with {code}: {self.said()[-_TAIL:]}"
            assert time.monotonic() < deadline, (
                f"{self.name}: {what}: not within {seconds:g} s: {self.said()[-_TAIL:]}"
            )
            time.sleep(_POLL_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STOP_S)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """The exit code after a signal; killed when it takes too long."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"{self.name} did not end within {STOP_S:g} s: {self.said()[-_TAIL:]}"
            ) from None

    def start_again(self) -> None:
        """After it ended."""
        assert self.process.poll() is not None, f"{self.name} runs"
        self.process = self._start()


def end_with_us() -> None:
    """In the program, before it begins: when the test is killed, the kernel ends it, too."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
