"""The program that the isolation probe runs in its groups.

It does what it is told on standard input, one line each, and answers with a line of JSON. It ends with its input, so
that nobody has to end it when the agent is gone.
"""

import json
import mmap
import os
import resource
import sys
import time

_CHUNK = 1 << 20


def spin(begin_s: float, end_s: float, cpu: int) -> tuple[float, float]:
    """Use a CPU from one time of the machine's clock to another (CLOCK_MONOTONIC); return the CPU time that was had,
    and the longest time for which nobody else got the CPU."""
    if cpu >= 0:
        os.sched_setaffinity(0, {cpu})
    time.sleep(max(begin_s - time.monotonic(), 0.0))
    began, switches = time.process_time(), _switches()
    since_s, longest_s = time.monotonic(), 0.0
    while (now_s := time.monotonic()) < end_s:
        if (found := _switches()) != switches:
            switches, since_s = found, time.monotonic()
        longest_s = max(longest_s, now_s - since_s)
    return time.process_time() - began, longest_s


def _switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def touch(amount: int) -> int:
    """Use so many bytes of memory; return those that are resident."""
    kept = bytearray(amount)
    kept[:: mmap.PAGESIZE] = b"\x01" * len(kept[:: mmap.PAGESIZE])
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


def fill(path: str, amount: int) -> int:
    """Write so many bytes to a file and to its disk; return them."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for _ in range(amount // _CHUNK):
            os.write(fd, bytes(_CHUNK))
        os.fsync(fd)
    finally:
        os.close(fd)
    return amount


def direct(path: str, amount: int) -> float:
    """Read so many bytes past the cache; return the seconds that it took."""
    began, left = time.monotonic(), amount
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, _CHUNK) as buffer:
            while left > 0 and os.readv(fd, [buffer]) > 0:
                left -= _CHUNK
    finally:
        os.close(fd)
    return time.monotonic() - began


def answer(words: list[str]) -> object:
    """Do what a line says. Raises: OSError, MemoryError, ValueError."""
    match words:
        case ["spin", begin_s, end_s, cpu]:
            return spin(float(begin_s), float(end_s), int(cpu))
        case ["touch", amount]:
            return touch(int(amount))
        case ["affinity"]:
            return sorted(os.sched_getaffinity(0))
        case ["fill", path, amount]:
            return fill(path, int(amount))
        case ["direct", path, amount]:
            return direct(path, int(amount))
    raise ValueError(f"unknown: {words}")


def main() -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        try:
            found = answer(line.split())
        except (OSError, MemoryError, ValueError) as error:
            found = {"error": str(error)}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
