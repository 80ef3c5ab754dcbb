"""Commands of the host end in time, tell what they answered, and are audited or only told."""

import contextlib
import sys
from pathlib import Path

import pytest

from koordinator.koordlet.audit import decode
from koordinator.koordlet.hooks import hook
from koordinator.koordlet.hooks.hook import Commands, NamespaceRunner
from tests.koordlet.hooks.hook_node import HookNode

PYTHON = sys.executable


async def test_a_command_reads_its_text_and_tells_output_and_status() -> None:
    done = await NamespaceRunner()((PYTHON, "-c", "import sys; print(input()); sys.exit(3)"), "hello\n")

    assert (done.code, done.output, done.is_good) == (3, "hello\n", False)


async def test_a_command_that_is_not_there_is_missing_and_no_exception() -> None:
    assert (await NamespaceRunner()(("no-such-command",))).code == 127


async def test_a_command_that_hangs_is_killed() -> None:
    done = await NamespaceRunner(timeout_s=0.2)((PYTHON, "-c", "import time; time.sleep(60)"))

    assert not done.is_good
    assert "0.2 s" in done.error


async def test_a_command_has_ten_seconds_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def timeout(limit_s: float) -> contextlib.AbstractAsyncContextManager[None]:
        limits.append(limit_s)
        return contextlib.nullcontext()

    monkeypatch.setattr(hook.asyncio, "timeout", timeout)
    assert (await NamespaceRunner()((PYTHON, "-c", ""))).is_good
    assert limits == [10.0]


@pytest.mark.parametrize("dry_run", [False, True])
async def test_what_changes_something_is_audited_or_only_reported(tmp_path: Path, dry_run: bool) -> None:
    node = HookNode(tmp_path, dry_run=dry_run)
    commands = Commands(NamespaceRunner(), node.executor, "TCNetworkQoS")
    target = tmp_path / "made"

    done = await commands.change("touch", str(target))

    assert done.is_good
    assert target.exists() is not dry_run
    dry_run_writes = [each.path for each in node.dry_run_writes]
    audited = [decode(each).message for each in node.shared.audit.newest_first()]
    assert (dry_run_writes, bool(audited)) == (([f"touch {target}"], False) if dry_run else ([], True))
