"""The folder of hook servers, as the proxy follows it."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordinator.host.syscalls import LinuxSyscalls
from koordinator.runtime_proxy import hook_files
from koordinator.runtime_proxy.dispatch import FailurePolicy
from koordinator.runtime_proxy.hook_client import HookClient

FILE = '{"remote-endpoint": "/run/a.sock", "failure-policy": "Fail", "runtime-hooks": ["PreCreateContainer"]}'


async def test_a_folder_that_is_missing_or_removed_is_made_and_followed(tmp_path: Path) -> None:
    folder = tmp_path / "etc" / "hookserver.d"
    client = HookClient(str(folder), LinuxSyscalls())
    await client.refresh()
    following = asyncio.create_task(client.follow())
    async with asyncio.timeout(10):
        for _ in range(2):
            while not folder.exists():  # noqa: ASYNC110 - made by a task
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # it is watched by now
            (folder / "a.json").write_text(FILE)
            while "PreCreateContainer" not in client.by_stage:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            shutil.rmtree(folder)
            while client.by_stage:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    following.cancel()
    await asyncio.wait((following,))
    await client.close()


def test_null_is_as_good_as_absent() -> None:
    content = b'{"remote-endpoint": "/run/a.sock", "failure-policy": null, "runtime-hooks": null}'
    found = hook_files.parse("/a.json", content)
    assert (found.stages, found.policy) == (frozenset(), FailurePolicy.IGNORE)


def test_a_file_that_goes_while_the_folder_is_read_takes_no_other_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(FILE)
    scan = os.scandir

    @contextlib.contextmanager
    def scandir(directory: str) -> Iterator[list["os.DirEntry[str]"]]:
        with scan(directory) as entries:
            found = list(entries)
        (tmp_path / "a.json").unlink()
        yield found

    monkeypatch.setattr(os, "scandir", scandir)
    assert list(hook_files.modified(str(tmp_path))) == [str(tmp_path / "b.json")]
