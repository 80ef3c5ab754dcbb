"""Locate the host's file systems, as this process sees them. Source: behaviour/koordlet-observe 2.1."""

from typing import Self

import msgspec

HOST_MODE = "hostMode"
"""Value of the environment variable `agent_mode` for an agent outside of a container."""


class HostRoots(msgspec.Struct, frozen=True, kw_only=True):
    """Directories below which everything is found; the defaults are those of the DaemonSet."""

    cgroup: str = "/host-cgroup"
    proc: str = "/proc"
    sys: str = "/host-sys"
    sys_fs: str = "/host-sys-fs"
    var_run: str = "/host-var-run"
    run: str = "/host-run"
    kubelet: str = "/var/lib/kubelet"
    kubepods_below: str = ""
    """Group below which the kubelet makes its groups (its `cgroupRoot`), empty for the root. All groups are named
    from there."""

    @classmethod
    def of_mode(cls, agent_mode: str) -> Self:
        """Return the directories of host mode, or of the DaemonSet for any other text."""
        return cls.below("") if agent_mode == HOST_MODE else cls()

    @classmethod
    def below(cls, root: str) -> Self:
        """Return a whole host below one directory: a mounted host, or a tree made for a test."""
        root = root.rstrip("/")
        return cls(
            cgroup=f"{root}/sys/fs/cgroup",
            proc=f"{root}/proc",
            sys=f"{root}/sys",
            sys_fs=f"{root}/sys/fs",
            var_run=f"{root}/var/run",
            run=f"{root}/run",
            kubelet=f"{root}/var/lib/kubelet",
        )
