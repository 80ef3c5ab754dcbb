"""Limits of memory on cgroup v1, where a second one counts memory and swap together and is never below the first.

A runtime on a node without swap gives a container one value for both (runc does, for containerd). They stay the same:
else a limit could not be raised (EINVAL), and one that is lowered would let the container swap. Source: the kernel's
cgroup-v1/memory.rst, 2.4.
"""

import os

from koordinator.host.files import FileProblem, Files

_BOTH = "memory.memsw.limit_in_bytes"


def write(files: Files, path: str, text: str) -> FileProblem | None:
    """Write a memory limit, and that of memory and swap where it is the same or leaves no room."""
    both = f"{os.path.dirname(path)}/{_BOTH}"
    of_both, of_memory = (_bytes(files.read(each)) for each in (both, path))
    wanted = _bytes(text)
    moves = of_both is not None and wanted is not None and (of_both == of_memory or 0 <= of_both < wanted)
    if moves:
        files.write(both, text)  # a higher one comes first
    problem = files.write(path, text)
    if moves:
        files.write(both, text)  # a lower one afterwards
    return problem


def _bytes(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
