"""The agent of `koordlet_reaction`: tells each write to the best-effort tree with its time."""

import asyncio
import time

from benchmarks import _agent_process
from benchmarks._agent_process import AgentSpec
from koordinator.host.files import FileProblem, Files
from koordinator.koordlet.qos.cpu_suppress_run import CPUSuppress, CPUSurge

TOLD = ("cpu.cfs_quota_us", "cpu.max", "cpuset.cpus")


class ReactionSpec(AgentSpec, frozen=True, kw_only=True):
    """What the agent is told of its node, and how it protects it."""

    policy: str
    capacity_milli: int
    reserved_milli: int
    is_plain: bool = False
    """As the reference: rounds by a clock of their own, and nothing between them."""


class TellingFiles(Files):
    """Tells of writes by which CPU is taken or given, once the kernel has them."""

    def write(self, path: str, text: str) -> FileProblem | None:
        problem = super().write(path, text)
        if problem is None and path.endswith(TOLD) and "/besteffort/" in path and "/pod" not in path:
            print(f"{time.monotonic():.6f} {text.strip()}", flush=True)
        return problem


async def run(spec: ReactionSpec, directory: str) -> None:
    """Until killed."""
    if spec.is_plain:
        _be_plain()
    amounts = {"cpu": f"{spec.capacity_milli}m", "memory": "8Gi", "pods": "110"}
    reserved = f'{{"resources":{{"cpu":"{spec.reserved_milli}m"}}}}'
    node = {
        "metadata": {"annotations": {"node.koordinator.sh/reservation": reserved}},
        "status": {"capacity": amounts, "allocatable": amounts},
    }
    threshold = {"enable": True, "cpuSuppressPolicy": spec.policy, "cpuSuppressThresholdPercent": 100}
    slo = {"resourceUsedThresholdWithBE": threshold}
    files = TellingFiles(_agent_process.HOT_FILES_MAX)
    async with _agent_process.running(spec, directory, node=node, slo=slo, files=files):
        print("started", flush=True)
        await asyncio.Event().wait()


def _be_plain() -> None:
    """Take away what makes this agent react sooner than rounds by the clock do."""
    del CPUSuppress.after
    CPUSurge.gates = ("BECPUManager",)


if __name__ == "__main__":
    _agent_process.serve(ReactionSpec, run)
