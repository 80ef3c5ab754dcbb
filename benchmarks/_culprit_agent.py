"""The agent of `culprit`: tells each second how the service is, and whom it names."""

import asyncio
import time

import msgspec

from benchmarks import _agent_process
from benchmarks._agent_process import AgentSpec
from koordinator.host.files import Files
from koordinator.koordlet.agent import Agent

OWN_GATES = "Interference=true,BECPUSuppress=false,GroupIdentity=false,CPUBurst=false"
"""Nothing protects the service: it is to suffer."""


class AgentReport(msgspec.Struct, frozen=True):
    """One second: the service's degradation, and the verdict about it."""

    at_s: float
    level: float
    senses: dict[str, float]
    since_s: float | None
    culprit: str = ""
    resource: str = ""
    confidence: float = 0.0
    named_s: float = 0.0
    use: dict[str, list[float]] = {}


async def run(spec: AgentSpec, directory: str) -> None:
    """Until killed."""
    amounts = {"cpu": "2", "memory": "8Gi", "pods": "110"}
    node = {"status": {"capacity": amounts, "allocatable": amounts}}
    files = Files(_agent_process.HOT_FILES_MAX)
    async with _agent_process.running(spec, directory, node=node, gates=OWN_GATES, files=files) as agent:
        await _report(agent)


async def _report(agent: Agent) -> None:
    loop, view, last_s = asyncio.get_running_loop(), agent.shared.view, 0.0
    skew_s = time.monotonic() - loop.time()
    while True:
        await asyncio.sleep(0.02)
        found = view.interference
        if found is None or found.at_s == last_s:
            continue
        last_s = found.at_s
        for uid, each in found.services.items():
            verdict = found.verdicts.get(uid)
            report = AgentReport(
                at_s=found.at_s + skew_s,
                level=each.level,
                senses={indicator.value: level for indicator, level in each.indicators.items()},
                since_s=None if each.since_s is None else each.since_s + skew_s,
                culprit="" if verdict is None else verdict.culprit,
                resource="" if verdict is None else verdict.resource,
                confidence=0.0 if verdict is None else verdict.confidence,
                named_s=0.0 if verdict is None else verdict.at_s + skew_s,
            )
            print(msgspec.json.encode(report).decode(), flush=True)


if __name__ == "__main__":
    _agent_process.serve(AgentSpec, run)
