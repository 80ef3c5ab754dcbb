"""A `koordinator up` that a test starts, measures and kills."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

START_S = 180.0
STOP_S = 60.0


class Server:
    """Runs inside `with`; its log goes to a file, so that nothing waits for a reader."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._folder = folder
        self._arguments = arguments
        self.log = folder / "log"
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise

    def start(self) -> None:
        """Start (again) and wait until it answers."""
        kubeconfig = self._folder / "kubeconfig"
        kubeconfig.unlink(missing_ok=True)
        command = [sys.executable, "-m", "koordinator.cli.main", "up", "--kubeconfig", str(kubeconfig)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*command, *self._arguments], stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not kubeconfig.exists():
            assert self.process.poll() is None, self.words()
            assert time.monotonic() < deadline, f"not up after {START_S:g} s: {self.words()}"
            time.sleep(0.05)
        self.url = str(yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"])

    def kill(self) -> None:
        """As the kernel does when memory ends: no chance to save anything."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def resident_mib(self) -> float:
        """Memory that the process holds now."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None, status
        return int(found[1]) / 1024

    def words(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-4_000:]

    def failures(self) -> list[str]:
        """Lines of its log that tell of a mistake of its own."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if "request failed" in line or "raised" in line or "Traceback" in line]
