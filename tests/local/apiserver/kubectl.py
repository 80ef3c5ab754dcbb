"""Runs the stock kubectl against a server in this process."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from koordinator.local.apiserver import ApiServer

BINARY = shutil.which("kubectl")
needs_kubectl = pytest.mark.skipif(BINARY is None, reason="no kubectl on the PATH")
TIMEOUT_S = 30


class KubectlFailed(AssertionError):
    """kubectl ended with an error, or said something on stderr."""


class Kubectl:
    """`await kubectl("get pods")` gives what it prints; raises KubectlFailed when it fails."""

    def __init__(self, server: ApiServer, directory: Path) -> None:
        self._directory = directory
        self.kubeconfig = directory / "kubeconfig"
        server.write_kubeconfig(self.kubeconfig)

    async def __call__(
        self, command: str, *, stdin: str = "", env: dict[str, str] | None = None, stderr: bool = False
    ) -> str:
        code, out, err = await self.run(command, stdin=stdin, env=env)
        if code != 0 or (err and not stderr):
            raise KubectlFailed(f"kubectl {command}: exit code {code}\n{out}\n{err}")
        return out + err

    async def fails(self, command: str, *, stdin: str = "", env: dict[str, str] | None = None) -> str:
        """What kubectl says when it fails, as it must."""
        code, out, err = await self.run(command, stdin=stdin, env=env)
        if code == 0:
            raise KubectlFailed(f"kubectl {command}: should have failed\n{out}\n{err}")
        return out + err

    async def run(
        self, command: str, *, stdin: str = "", env: dict[str, str] | None = None
    ) -> tuple[int, str, str]:
        process = await self.start(command, env=env)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                out, err = await process.communicate(stdin.encode())
        except TimeoutError:
            process.kill()
            out, err = await process.communicate()
            raise KubectlFailed(
                f"kubectl {command}: still running after {TIMEOUT_S} s\n{out!r}\n{err!r}"
            ) from None
        return process.returncode or 0, out.decode(), err.decode()

    async def start(self, command: str, *, env: dict[str, str] | None = None) -> asyncio.subprocess.Process:
        """A kubectl that keeps running (`get -w`)."""
        assert BINARY is not None
        script = f'exec "$0" --kubeconfig "$1" --cache-dir "$2" {command}'
        return await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", script, BINARY, str(self.kubeconfig), str(self._directory / "cache"),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig), **(env or {})},
        )  # fmt: skip
