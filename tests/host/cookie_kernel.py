"""A kernel with core scheduling, as prctl(2) describes it."""

import ctypes
import errno
import os

from koordinator.host.syscalls import NoSyscalls


class CookieKernel(NoSyscalls):
    """Cookies by process; 0 is the calling thread, 2 the kernel's own thread. `is_on` is the vendor kernel's switch."""

    def __init__(self) -> None:
        self.cookies = {0: 0, 2: 0, 10: 0, 11: 0}
        self.next = 1000
        self.is_on = True

    def prctl(self, option: int, arg2: int, arg3: int, arg4: int, arg5: int) -> int:
        assert option == 62
        if not self.is_on:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if arg3 not in self.cookies:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        if arg2 == 0:
            ctypes.c_ulong.from_address(arg5).value = self.cookies[arg3]
        elif arg2 == 1:
            self.next += 8
            self.cookies[arg3] = self.next
        elif arg2 == 2:
            self.cookies[arg3] = self.cookies[0]
        elif arg2 == 3:
            self.cookies[0] = self.cookies[arg3]
        return 0
