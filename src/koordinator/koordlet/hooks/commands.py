"""Commands of the host (`tc`, `ipset`, `iptables`) in its network namespace: bounded in time, audited, or only told."""

import asyncio
import contextlib
import shutil
from collections.abc import Sequence
from typing import Protocol

import msgspec

from koordinator.host.host import Host
from koordinator.koordlet.writing.executor import Executor

TIMEOUT_S = 10.0
OUTPUT_BYTES_MAX = 4 * 1024 * 1024
_MISSING_CODE = 127


class Done(msgspec.Struct, frozen=True):
    """The answer of a command; `code` 127 where it is not installed, negative where it was killed."""

    code: int
    output: str
    error: str = ""

    @property
    def is_good(self) -> bool:
        """Return whether it succeeded."""
        return self.code == 0

    @property
    def is_missing(self) -> bool:
        """Return whether there is no such command."""
        return self.code == _MISSING_CODE


class Runner(Protocol):
    """Runs one command."""

    async def __call__(self, command: Sequence[str], text: str = "") -> Done:
        """Give it `text` to read, and wait until it ends or its time is over. Raises nothing."""
        ...


def host_runner(host: Host) -> Runner:
    """Return the host's commands, entered into the network namespace of its first process where ours is another."""
    own, first = (f"{host.roots.proc}/{pid}/ns/net" for pid in ("self", "1"))
    is_other = host.files.identity(first) not in (None, host.files.identity(own))
    return NamespaceRunner(first if is_other else "")


class NamespaceRunner:
    """Commands in a network namespace, named by its file; empty is our own."""

    def __init__(self, namespace: str = "", timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._prefix = ("nsenter", f"--net={namespace}", "--") if namespace else ()

    async def __call__(self, command: Sequence[str], text: str = "") -> Done:
        if shutil.which(command[0]) is None:
            return Done(_MISSING_CODE, "", f"{command[0]} is not installed")
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *self._prefix, *command, stdin=pipe, stdout=pipe, stderr=pipe
            )
        except OSError as error:
            return Done(_MISSING_CODE, "", str(error))
        try:
            async with asyncio.timeout(self._timeout_s):
                output, problem = await process.communicate(text.encode())
        except TimeoutError:
            return Done(-1, "", f"took longer than {self._timeout_s:g} s")
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        kept = output[:OUTPUT_BYTES_MAX].decode(errors="replace")
        return Done(process.returncode or 0, kept, problem.decode(errors="replace").strip()[:400])


class Commands:
    """Commands of one owner: those that look, and those that change something."""

    def __init__(self, runner: Runner, executor: Executor, owner: str, reason: str) -> None:
        self._runner = runner
        self._executor = executor
        self._owner, self._reason = owner, reason

    async def look(self, *command: str) -> Done:
        """Ask; done in a dry run, too."""
        return await self._runner(command)

    async def change(self, *command: str, text: str = "") -> Done:
        """Change something: audited when it succeeded; only told in a dry run."""
        words = " ".join(command)
        if self._executor.is_dry_run:
            self._log_command(words, text)
            return Done(0, "")
        done = await self._runner(command, text)
        if done.is_good:
            self._log_command(words, text)
        return done

    def _log_command(self, words: str, text: str) -> None:
        what = text.strip().replace("\n", "; ") or "run"
        self._executor.perform(words, what, lambda: None, self._owner, self._reason)
