"""Builders of gangs, and what a story looks at."""

from typing import Any

from koordinator.scheduler.plugin.capabilities import ApiRequest
from tests.scheduler.coscheduling.test_plugin import PREFIX
from tests.scheduler.world import World, pod

Json = dict[str, Any]
GROUP_LABEL = "pod-group.scheduling.sigs.k8s.io"
SETTLED = 0.05
FLUSH_S = 340.0
"""By then every sleeper was tried once more."""


def pod_group(name: str, minimum: int, namespace: str = "default", **annotations: str) -> Json:
    about = {f"{PREFIX}/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return {
        "metadata": {"name": name, "namespace": namespace, "annotations": about},
        "spec": {"minMember": minimum},
    }


def in_group(name: str, gang: str, cpu: str = "1", namespace: str = "default", **parts: Any) -> Json:
    """A pod that a PodGroup describes."""
    body = pod(name, cpu=cpu, **parts)
    body["metadata"] |= {"labels": {GROUP_LABEL: gang}, "namespace": namespace}
    return body


def condition(world: World, name: str) -> str:
    return str(world.condition(name).get("message", ""))


def gang_of(world: World, gang_id: str) -> Json | None:
    one = next(
        each for each in world.scheduler.engine.endpoints()["Coscheduling"] if each.path.startswith("gang/")
    )
    namespace, name = gang_id.split("/")
    answer = one.answer(ApiRequest(path={"namespace": namespace, "name": name}))
    if answer.status == 404:
        assert answer.body == f"cannot find gang {gang_id}"
        return None
    return dict(answer.body)


def held(world: World) -> list[str]:
    return sorted(each.pod.pod.metadata.name for each in world.scheduler.waiting)
