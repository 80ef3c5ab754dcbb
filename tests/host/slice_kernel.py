"""A kernel whose threads have time slices, as sched_setattr(2) describes it since Linux 6.12."""

import errno
import os
import struct

from koordinator.host.syscalls import NoSyscalls

ATTR = struct.Struct("=IIQiIQQQ")
BASE_NS = 2_800_000
RESET_ON_FORK = 1


class SliceKernel(NoSyscalls):
    """Threads by id; 0 is the calling one. `policies`, `nice` and `flags` of those that have others than usual."""

    def __init__(self, *threads: int) -> None:
        self.slices = dict.fromkeys((0, *threads), BASE_NS)
        self.policies: dict[int, int] = {}
        self.nice: dict[int, int] = {}
        self.flags: dict[int, int] = {}
        self.changes = 0

    def sched_getattr(self, tid: int) -> bytes:
        found = self.slices.get(tid)
        if found is None:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        policy, nice, flags = (each.get(tid, 0) for each in (self.policies, self.nice, self.flags))
        return ATTR.pack(56, policy, flags, nice, 0, found, 0, 0)

    def sched_setattr(self, tid: int, attributes: bytes) -> None:
        size, policy, flags, nice, priority, runtime_ns, deadline, period = ATTR.unpack(attributes)
        told = (policy, nice, flags)
        assert told == tuple(each.get(tid, 0) for each in (self.policies, self.nice, self.flags))
        assert (size, priority, deadline, period) == (48, 0, 0, 0)
        if tid not in self.slices:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        self.slices[tid] = min(max(runtime_ns, 100_000), 100_000_000) if runtime_ns else BASE_NS
        self.changes += 1
