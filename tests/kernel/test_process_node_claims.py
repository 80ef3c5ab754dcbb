"""Whose groups they are: those of others are left alone, left-overs of a killed run are taken away."""

import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from koordinator.host.cgroups import V1_SUBSYSTEMS, Cgroups
from koordinator.local.processes.process_node import ForeignPods
from tests.kernel.conftest import make, remove
from tests.kernel.process_world import process_world, sh

KILLED = """
    import asyncio, os, sys
    from pathlib import Path
    from tests.kernel.process_world import process_world, sh

    async def main():
        async with process_world(sys.argv[1], Path(sys.argv[2])) as world:
            await world.create("web", sh("setsid sleep 300 & exec sleep 300"))
            await world.phase("web", "Running")
            os.kill(os.getpid(), 9)

    asyncio.run(main())
"""


async def test_groups_of_somebody_else_are_refused_and_untouched(
    real: Cgroups, group: str, tmp_path: Path
) -> None:
    make(real, f"{group}/kubepods")

    with pytest.raises(ForeignPods, match="was made by somebody else"):
        async with process_world(group, tmp_path):
            raise AssertionError("it began")

    assert real.exists(f"{group}/kubepods")
    remove(real, f"{group}/kubepods")


async def test_a_second_node_is_refused_while_the_first_runs(group: str, tmp_path: Path) -> None:
    async with process_world(group, tmp_path) as world:
        await world.create("web", sh("exec sleep 60"))
        await world.phase("web", "Running")

        with pytest.raises(ForeignPods, match="belongs to a process node that runs"):
            async with process_world(group, tmp_path):
                raise AssertionError("it began")

        assert (await world.get("web")).status.phase == "Running"
        assert world.node.groups.processes(world.node.groups.root)


async def test_what_a_killed_node_left_behind_is_taken_away(
    real: Cgroups, group: str, tmp_path: Path
) -> None:
    _run_and_be_killed(group, tmp_path)
    left = {pid for each in real.walk(group, 8) for pid in real.procs(each) or ()}
    assert len(left) >= 3, "the container's two processes and the sandbox outlive their node"

    async with process_world(group, tmp_path) as world:
        assert not left & world.node.groups.processes(group)
        assert not [each for each in real.walk(group, 8) if "/pod" in each]
        assert not list((tmp_path / "pods").glob("pods/*"))


async def test_parents_that_were_made_for_it_go_with_it_and_others_stay(
    real: Cgroups, group: str, tmp_path: Path
) -> None:
    parent = f"{group}/made/inner"

    async with process_world(parent, tmp_path) as world:
        await world.create("web", sh("exec sleep 60"))
        await world.phase("web", "Running")
    assert everywhere(real, group) == {group}

    _run_and_be_killed(parent, tmp_path)
    assert f"{parent}/kubepods" in everywhere(real, group)
    async with process_world(parent, tmp_path):
        make(real, f"{group}/made/others")
    assert everywhere(real, group) == {group, f"{group}/made", f"{group}/made/others"}, "others use it"

    async with process_world(group, tmp_path):
        pass
    assert real.exists(group), "it was there before"


async def test_a_mark_that_cannot_be_read_makes_the_groups_foreign(
    real: Cgroups, group: str, tmp_path: Path
) -> None:
    make(real, f"{group}/kubepods")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / f"{group}-kubepods.json").write_bytes(msgspec.json.encode({"pid": "what"}))

    with pytest.raises(ForeignPods):
        async with process_world(group, tmp_path):
            raise AssertionError("it began")

    remove(real, f"{group}/kubepods")


def everywhere(real: Cgroups, group: str) -> set[str]:
    """A group and all below it, in any hierarchy."""
    return {each for subsystem in V1_SUBSYSTEMS for each in real.walk(group, 8, subsystem)}


def _run_and_be_killed(group: str, folder: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(KILLED), group, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == -9, done.stderr
