"""What the pods of `culprit` do, each a process of its own that is told by lines on stdin.

`serve`: a service with a worker per CPU, open-loop requests, its histogram over HTTP; `surge` makes its own load grow.
`batch`: one of five harmless habits; `cpu`, `memory` or `disk` makes it an antagonist, `calm` a harmless one again.
"""

import http.server
import mmap
import os
import random
import select
import signal
import struct
import sys
import threading
import time

BOUNDS_MS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 1000, 2000, 5000)
_COUNTS = struct.Struct(f"={len(BOUNDS_MS) + 1}Q")
_RATE, _SURGE_RATE = 80.0, 190.0
_REQUEST_CPU_S = 0.0045
_BLOCK = 1 << 20
_TABLE = 96 << 20


def serve(files: list[str], directory: str) -> None:
    """One worker for each CPU, each with a part of the counts; the parent answers scrapes."""
    cpus = os.cpu_count() or 1
    shared = mmap.mmap(-1, mmap.PAGESIZE * (cpus + 1))
    pids = []
    for worker in range(cpus):
        pid = os.fork()
        if not pid:
            _answer(shared, worker, random.Random(worker), f"{directory}/service-{worker}")
        pids.append(pid)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(shared, cpus))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    for line in sys.stdin:
        shared[0] = 1 if line.strip() == "surge" else 0
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _answer(shared: mmap.mmap, worker: int, rng: random.Random, path: str) -> None:
    counts = [0] * (len(BOUNDS_MS) + 1)
    start = mmap.PAGESIZE * (worker + 1)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    due = time.monotonic()
    while True:
        due += (
            rng.expovariate(_SURGE_RATE if shared[0] else _RATE)
            if shared[0]
            else rng.uniform(0.5, 1.5) / _RATE
        )
        wait = due - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        until = time.thread_time() + _REQUEST_CPU_S
        while time.thread_time() < until:
            pass
        if rng.random() < 0.05:
            os.pwrite(file, b"x" * 4096, 0)
            os.fdatasync(file)
        took_ms = (time.monotonic() - due) * 1000
        counts[sum(took_ms > bound for bound in BOUNDS_MS)] += 1
        shared[start : start + _COUNTS.size] = _COUNTS.pack(*counts)
        if took_ms > 3000:
            due = time.monotonic()  # who waited so long has gone


def _handler(shared: mmap.mmap, workers: int) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            total = [0] * (len(BOUNDS_MS) + 1)
            for worker in range(workers):
                start = mmap.PAGESIZE * (worker + 1)
                own = _COUNTS.unpack(shared[start : start + _COUNTS.size])
                total = [a + b for a, b in zip(total, own, strict=True)]
            lines, below = ["# TYPE request_seconds histogram"], 0
            for bound, count in zip((*BOUNDS_MS, None), total, strict=True):
                below += count
                upper = "+Inf" if bound is None else f"{bound / 1000:g}"
                lines.append(f'request_seconds_bucket{{le="{upper}"}} {below}')
            body = "\n".join([*lines, f"request_seconds_count {below}", ""]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


def batch(seed: int, directory: str) -> None:
    """A harmless habit until told otherwise."""
    rng, habit = random.Random(seed), seed % 5
    children: list[int] = []
    duty, until, data = 0.05, 0.0, bytearray(1 << 20)
    while True:
        if select.select([sys.stdin], [], [], 0)[0]:
            word = sys.stdin.readline().strip()
            for pid in children:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            children = []
            if not word:
                return
            if word != "calm":
                children = [_antagonist(word, directory) for _ in range(os.cpu_count() or 1)]
        now = time.monotonic()
        if now >= until:
            until, duty = now + rng.uniform(0.7, 4.0), _duty(habit, rng, duty)
        spin = time.thread_time() + duty * 0.05
        while time.thread_time() < spin:
            data[rng.randrange(len(data))] = 1
        time.sleep(0.05)


def _duty(habit: int, rng: random.Random, duty: float) -> float:
    match habit:
        case 0:
            return 0.08  # always the same
        case 1:
            return rng.choice((0.0, 0.0, 0.3))  # now and then
        case 2:
            return min(max(duty + rng.uniform(-0.06, 0.06), 0.0), 0.25)  # a walk
        case 3:
            return 0.15 if duty < 0.1 else 0.02  # on and off
    return 0.0  # nothing


def _antagonist(kind: str, directory: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    if kind == "memory":
        source, target = bytearray(_TABLE), bytearray(_TABLE)
        while True:
            target[:] = source
    if kind == "disk":
        path = f"{directory}/antagonist-{os.getpid()}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        os.unlink(path)
        block = mmap.mmap(-1, _BLOCK)
        while True:
            for index in range(64):
                os.pwrite(fd, block, index * _BLOCK)
            os.fdatasync(fd)
    while True:
        pass


def main() -> None:
    role, seed, directory, *files = sys.argv[1:]
    for file in files:
        with open(file, "w", encoding="utf-8") as procs:
            procs.write(str(os.getpid()))
    if role == "serve":
        serve(files, directory)
    else:
        batch(int(seed), directory)


if __name__ == "__main__":
    main()
