"""Preemption for whole jobs on full nodes: how long one decision takes beside that of stock preemption for one pod.

Nodes hold 30 pods each, of seven priorities and of jobs of 24 pods. Members of the gang take a quarter of a node or a
whole one. Only the decision is measured; evictions are requests in the background.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.scheduler_waiting import NOW_S, best_ms, node_body, pod_body
from koordinator.api import labels
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.clock import FixedClock
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import PluginConfig
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.post_filter import CycleDiagnosis
from koordinator.scheduler.engine.view import View
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.plugins.coscheduling.job_preemptor import JobPreemption
from koordinator.scheduler.plugins.coscheduling.jobs import PreemptorJob
from koordinator.scheduler.plugins.coscheduling.plugin import Coscheduling
from koordinator.scheduler.plugins.preemption.plugin import DefaultPreemption
from koordinator.scheduler.table.pod_info import PodInfo

NODE_COUNTS = (500, 2_000, 5_000)
MEMBER_COUNTS = (8, 64, 256)
PODS_PER_NODE = 30
JOB_SIZE = 24
NODE_CPU = 32


class Cluster:
    """Full nodes, and a scheduler that decides only."""

    def __init__(self, node_count: int) -> None:
        shipped = default_plugins.shipped_profile()
        own = PluginConfig(name="Coscheduling", args={"enablePreemption": True})
        profile = msgspec.structs.replace(shipped, plugin_config=[*shipped.plugin_config, own])
        config = msgspec.structs.replace(default_plugins.shipped_config(), profiles=[profile])
        self.engine = Engine(config, FixedClock(NOW_S), plugins=installed_plugins())
        self.table = self.engine.table
        [self.profile] = self.engine.profiles.values()
        self.gangs = next(each for each in self.profile.plugins if isinstance(each, Coscheduling))
        self.stock = next(each for each in self.profile.plugins if isinstance(each, DefaultPreemption))
        for number in range(node_count):
            self.table.set_node(from_builtins(node_body(f"node-{number}", NODE_CPU), Node))
            for place in range(PODS_PER_NODE):
                each = number * PODS_PER_NODE + place
                body = pod_body(f"pod-{each}", 1_000 * NODE_CPU // PODS_PER_NODE, priority=each % 7)
                body["metadata"]["labels"] = {labels.QUESTIONED_OBJECT_KEY: f"job-{each // JOB_SIZE}"}
                self.table.assign(self.info(body), f"node-{number}")

    def info(self, body: dict[str, Any]) -> PodInfo:
        return PodInfo.of(from_builtins(body, Pod), self.table.registry)

    def diagnosis(self, pod: PodInfo) -> CycleDiagnosis:
        view = View(self.profile, self.table, self.engine.nominations, pod)
        return CycleDiagnosis(view, Evaluation(self.profile, self.table, pod), {})

    def decision(self, member_count: int, cpu: int) -> Callable[[], JobPreemption]:
        """A gang that fits nowhere asks whom it may evict."""
        pods = [self.info(pod_body(f"member-{n}", 1_000 * cpu, priority=100)) for n in range(member_count)]
        job = PreemptorJob(name="gang", trigger=pods[0], members={pod.key: pod for pod in pods}, is_gang=True)
        asked = self.diagnosis(pods[0])
        return lambda: self.gangs.preemption.decide(job, asked)[0]


def measure(node_count: int) -> None:
    cluster = Cluster(node_count)
    pod = cluster.info(pod_body("preemptor", 1_000 * NODE_CPU // 4, priority=100))
    asked = cluster.diagnosis(pod)
    rows = cluster.table.rows
    stock_ms = best_ms(lambda: cluster.stock.preemptor.dry_run(pod, rows, asked).best, 3)
    print(
        f"{node_count:,} full nodes of {PODS_PER_NODE} pods; stock preemption for one pod: {stock_ms:.0f} ms"
    )
    for cpu in (NODE_CPU // 4, NODE_CPU):
        for member_count in MEMBER_COUNTS:
            decide = cluster.decision(member_count, cpu)
            found = decide()
            took_ms = best_ms(decide, 3)
            jobs = len({each.job for each in found.evictions})
            what = (
                f"{len(found.evictions)} victims of {jobs} jobs"
                if found.is_success
                else f"no: {found.message}"
            )
            print(
                f"  {member_count} members of {cpu} cores: {took_ms / 1_000:.3f} s, {took_ms / stock_ms:.1f} times "
                f"as much ({what})"
            )
    hopeless = cluster.decision(5 * node_count, NODE_CPU)
    print(f"  {5 * node_count:,} members, more than there is room for: {best_ms(hopeless, 1) / 1_000:.3f} s")


def main() -> None:
    for node_count in NODE_COUNTS:
        measure(node_count)


if __name__ == "__main__":
    main()
