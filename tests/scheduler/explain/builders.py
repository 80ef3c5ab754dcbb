"""An engine with nodes and pods, and the two questions: what does explain say, what does the cycle do."""

from typing import Any

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.meta import Object
from koordinator.api.sigs import PodGroup
from koordinator.clock import FixedClock
from koordinator.scheduler.config import config, default_plugins
from koordinator.scheduler.config.config import SchedulerConfig
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.results import Placed, Unplaced
from koordinator.scheduler.explain.answer import GangAnswer, PodAnswer
from koordinator.scheduler.explain.decide import PodQuestion, explain
from koordinator.scheduler.explain.gangs import explain_gang
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler import world

NOW_S = world.EPOCH_S


def stock_config() -> SchedulerConfig:
    """All stock plugins, for pods of `koord-scheduler`."""
    return config.decode({"profiles": [{"schedulerName": "koord-scheduler"}]})


class Bench:
    """A cluster on the bench."""

    def __init__(self, settings: SchedulerConfig | None = None, seed: int = 0, **options: Any) -> None:
        settings = settings or default_plugins.shipped_config()
        options.setdefault("plugins", installed_plugins())
        self.engine = Engine(settings, FixedClock(NOW_S), seed=seed, **options)

    def node(self, name: str, **parts: Any) -> "Bench":
        node = from_builtins(world.node(name, **parts), Node)
        self.engine.table.set_node(node)
        return self.seen(node)

    def seen(self, obj: Object) -> "Bench":
        """Plugins hear of an object."""
        for handle in self.engine.handles:
            for watch in handle.watches:
                if watch.view is type(obj):
                    watch.on_add(obj)
        return self

    def pod_group(self, name: str, minimum: int, **annotations: str) -> "Bench":
        meta = {"namespace": "default", "name": name, "annotations": annotations}
        return self.seen(from_builtins({"metadata": meta, "spec": {"minMember": minimum}}, PodGroup))

    def member(self, name: str, gang: str, **parts: Any) -> PodInfo:
        body = world.pod(name, **parts)
        body["metadata"]["labels"] = {"pod-group.scheduling.sigs.k8s.io": gang}
        info = self.of(body)
        self.seen(info.pod)
        return info

    def members(self, gang: str, count: int, **parts: Any) -> list[PodInfo]:
        return [self.member(f"{gang}-{number}", gang, **parts) for number in range(count)]

    def gang(self, name: str) -> GangAnswer:
        found = explain_gang(self.engine, f"default/{name}")
        assert found is not None, name
        return found

    def info(self, name: str, **parts: Any) -> PodInfo:
        return self.of(world.pod(name, **parts))

    def of(self, body: dict[str, Any]) -> PodInfo:
        return PodInfo.of(from_builtins(body, Pod), self.engine.table.registry)

    def running(self, name: str, node: str, **parts: Any) -> PodInfo:
        info = self.info(name, **parts)
        self.engine.table.assign(info, node)
        return info

    def ask(self, pod: PodInfo, **question: Any) -> PodAnswer:
        return explain(self.engine, pod, PodQuestion(**question))

    def cycle(self, pod: PodInfo, attempt: int = 1) -> Placed | Unplaced:
        profile = self.engine.profiles[pod.pod.spec.scheduler_name]
        return self.engine.cycle.run(profile, pod, profile.class_key(pod), attempt, NOW_S)
