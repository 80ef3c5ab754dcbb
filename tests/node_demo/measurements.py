"""Measurements as runs bring them; a test mentions only what matters to it."""

import msgspec
import numpy as np

from koordinator.node_demo.measure import ClientLatency, Measured, Records
from koordinator.node_demo.observe import Use
from koordinator.node_demo.plan import DemoMode, DemoRun, DemoScenario, Hog, ServiceKind

WINDOW_S = 5.0
_LATENCY = ClientLatency(
    requests=1_000,
    unanswered=0,
    answered_per_s=200.0,
    p50_ms=1.2,
    p99_ms=3.0,
    p999_ms=5.0,
    max_ms=6.0,
    sent_late_p99_ms=0.1,
)
_USE = Use(
    cpus=2,
    wall_s=WINDOW_S,
    total_ratio=0.43,
    service_ratio=0.40,
    batch_ratio=0.0,
    agent_ratio=0.0,
    client_ratio=0.02,
    other_ratio=0.01,
    steal_ratio=0.0,
    work_per_s=0.0,
)


def records(*latencies_ms: float) -> Records:
    """Requests due one millisecond after the other; negative latencies have no answer."""
    waited = np.array([round(each * 1e6) for each in latencies_ms], dtype=np.int64)
    due = np.arange(waited.size, dtype=np.int64) * 1_000_000
    return Records(due, waited, np.zeros(waited.size, dtype=np.int64))


def measured(
    mode: DemoMode = DemoMode.ALONE,
    load_percent: int = 40,
    hog: Hog = Hog.CPU,
    service: ServiceKind = ServiceKind.CPU,
    repeat: int = 0,
    p99_ms: float = 3.0,
    **use: float,
) -> Measured:
    return Measured(
        run=DemoRun(DemoScenario(load_percent, hog, service), mode, repeat),
        window_s=WINDOW_S,
        latency=msgspec.structs.replace(_LATENCY, p99_ms=p99_ms),
        use=msgspec.structs.replace(_USE, **use),
        records=records(1.0, 1.2, p99_ms),
        evidence={"/sys/fs/cgroup/cpu/kubepods/besteffort/podbatch-0/cpu.idle": "1"}
        if mode is DemoMode.MANAGED
        else {},
    )
