"""Claim kubepods: a mark in `/run` tells left-overs of an earlier run of ours from groups of a real kubelet."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from koordinator.host.errors import HostError
from koordinator.host.host import Host
from koordinator.local.processes.groups import PodGroups


class ForeignPods(HostError):
    """The group of all pods exists and is not ours."""

    def __init__(self, group: str, reason: str) -> None:
        super().__init__(group, reason)
        self.group, self.reason = group, reason

    def __str__(self) -> str:
        return f"cgroup {self.group} exists and {self.reason}; nothing was touched"


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The maker of the groups. `inode` is that of the group of all pods, 0 while it is being made."""

    boot: str
    pid: int
    start_ticks: int
    group: str
    inode: int = 0
    folder: str = ""
    """Where logs and volumes of its pods are."""
    parents: tuple[str, ...] = ()
    """Groups above that of all pods that were made for it."""


class Claims:
    """The mark of one tree of groups. `directory` is on a file system that a boot empties."""

    def __init__(self, host: Host, groups: PodGroups, directory: str) -> None:
        self._host = host
        self._groups = groups
        name = groups.root.replace("/", "-")
        self._path = Path(directory) / f"{name}.json"

    def left_over(self) -> Claim | None:
        """Return the claim of an earlier run that has ended; None when there is nothing.

        Raises: ForeignPods when the groups belong to somebody else, or to a run that goes on.
        """
        claim = self._read()
        group = self._groups.root
        if claim is not None and claim.boot != self._host.machine.boot_id():
            claim = None
        if claim is not None and self._host.processes.start_ticks(claim.pid) == claim.start_ticks:
            raise ForeignPods(group, f"belongs to a process node that runs (process {claim.pid})")
        if not self._groups.exists():
            return claim
        if claim is None:
            raise ForeignPods(
                group,
                "was made by somebody else: a kubelet runs here, or has left it behind; "
                "remove it, or choose a parent group with --process-node-parent",
            )
        if claim.inode not in (0, self._inode()):
            raise ForeignPods(group, "is not the one that was made here before")
        if claim.inode == 0 and self._groups.processes(group):
            raise ForeignPods(group, "has processes, while ours was not finished")
        return claim

    def announce(self, folder: str, parents: Sequence[str]) -> None:
        """Write down that we are about to make the groups. Raises: OSError."""
        self._write(self._claim(folder, parents, 0))

    def confirm(self, folder: str, parents: Sequence[str]) -> None:
        """Write down which groups are ours, now that they exist. Raises: OSError."""
        self._write(self._claim(folder, parents, self._inode()))

    def drop(self) -> None:
        """Forget it: nothing of ours is left."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    def _claim(self, folder: str, parents: Sequence[str], inode: int) -> Claim:
        return Claim(
            boot=self._host.machine.boot_id(),
            pid=os.getpid(),
            start_ticks=self._host.processes.start_ticks(os.getpid()) or 0,
            group=self._groups.root,
            inode=inode,
            folder=folder,
            parents=tuple(parents),
        )

    def _inode(self) -> int:
        identity = self._groups.cgroups.identity(self._groups.root)
        return 0 if identity is None else identity[1]

    def _read(self) -> Claim | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Claim)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def _write(self, claim: Claim) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        beside = self._path.with_suffix(".new")
        beside.write_bytes(msgspec.json.encode(claim))
        os.replace(beside, self._path)
