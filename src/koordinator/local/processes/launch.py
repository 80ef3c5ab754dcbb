"""Starting a process inside its group, and hearing of its end.

The process waits at a gate (a shell that reads a line) until it has been moved into its groups; only then it becomes
the command, so that nothing of it ever runs outside.
"""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

import msgspec

from koordinator.host.errors import HostError

_GATE = 'read -r _ || exit 125; in=$1; shift; [ "$in" ] || exec "$@"; exec "$@" <"$in"'
_SHELL = "/bin/sh"
NO_INPUT = "/dev/null"
OPEN_INPUT = ""
"""The command's input is what is written to `Process.input`."""
START_ERROR_CODE = 128
"""Exit code that a runtime reports of a command which could not be started."""
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class StartError(HostError):
    """The command cannot be started; `reason` is in the words of container runtimes."""

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(command, reason)
        self.command, self.reason = command, reason

    def __str__(self) -> str:
        return f'exec: "{self.command}": {self.reason}'


class Identity(msgspec.Struct, frozen=True):
    """The user and group of a process; None leaves it as we are."""

    user: int | None = None
    group: int | None = None


AS_WE_ARE = Identity()


class Exit(msgspec.Struct, frozen=True):
    """The end of a process: `code` as shells count (128 + signal), `signal` 0 without."""

    code: int
    signal: int = 0


class Process:
    """A running process. `wait` may be asked by any number of tasks."""

    def __init__(self, child: "subprocess.Popen[bytes]", own_input: int = -1) -> None:
        self._child = child
        self.input = own_input
        """Descriptor of its input, whoever started it closes it; -1 when it has none."""
        self.pid = child.pid
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Exit] = self._loop.create_future()
        self._pidfd = os.pidfd_open(child.pid)
        self._loop.add_reader(self._pidfd, self._on_end)

    async def wait(self) -> Exit:
        """Wait for its end and return how it ended."""
        return await asyncio.shield(self._ended)

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    def send(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if not self.has_ended:
            self._child.send_signal(number)

    def _on_end(self) -> None:
        code = self._child.poll()
        if code is None:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if not self._ended.done():
            self._ended.set_result(Exit(code) if code >= 0 else Exit(128 - code, -code))


def start(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: str,
    output: tuple[int, int],
    enter: Callable[[int], None],
    identity: Identity = AS_WE_ARE,
    stdin: str = NO_INPUT,
) -> Process:
    """Start a command; `enter` is given its process id before it runs and puts it where it belongs.

    `output` are descriptors for stdout and stderr, which stay the caller's; `stdin` is the path of its input.
    Raises: StartError; what `enter` raises.
    """
    program = _found(command, environment, folder)
    try:
        child = subprocess.Popen(
            [_SHELL, "-c", _GATE, _SHELL, stdin, program, *command[1:]],
            stdin=subprocess.PIPE,
            stdout=output[0],
            stderr=output[1],
            cwd=folder,
            env=dict(environment),
            start_new_session=True,
            user=identity.user,
            group=identity.group,
            extra_groups=[] if identity.user else None,
        )
    except OSError as error:
        raise StartError(command[0], os.strerror(error.errno or 0).lower()) from error
    assert child.stdin is not None
    try:
        enter(child.pid)
        os.write(child.stdin.fileno(), b"go\n")
        own_input = os.dup(child.stdin.fileno()) if stdin == OPEN_INPUT else -1
        child.stdin.close()
    except BaseException:
        child.stdin.close()
        child.send_signal(signal.SIGKILL)
        child.wait()
        raise
    return Process(child, own_input)


def start_pause(enter: Callable[[int], None]) -> Process:
    """Start a process that does nothing: a pod's sandbox. Raises: as `start`."""
    with open("/dev/null", "wb") as nothing:
        return start(
            ("sleep", "infinity"),
            environment={"PATH": DEFAULT_PATH},
            folder="/",
            output=(nothing.fileno(), nothing.fileno()),
            enter=enter,
        )


def _found(command: Sequence[str], environment: Mapping[str, str], folder: str) -> str:
    """Path of the program. Raises: StartError, as the shell at the gate could say it to nobody."""
    if not command or not command[0]:
        raise StartError("", "no command")
    name = command[0]
    if "/" in name:
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            raise StartError(name, "no such file or directory")
        if os.path.isdir(path) or not os.access(path, os.X_OK):
            raise StartError(name, "permission denied")
        return path
    found = shutil.which(name, path=environment.get("PATH", DEFAULT_PATH))
    if found is None:
        raise StartError(name, "executable file not found in $PATH")
    return found
