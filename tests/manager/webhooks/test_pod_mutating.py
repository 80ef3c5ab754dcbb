"""`/mutate-pod` as the API server meets it: caches, steps, gates, warnings, events, metrics."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator import clock as clocks
from koordinator.api import crd, labels
from koordinator.api.core import Event, Namespace
from koordinator.api.groups import ClusterColocationProfile, CustomResourceDefinition, PriorityClass
from koordinator.cluster.errors import ServiceUnavailable
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.local.patches import json_patch
from koordinator.manager.parts import ManagerContext
from koordinator.manager.webhooks import all as webhooks
from koordinator.manager.webhooks import review, table
from koordinator.manager.webhooks.pod_mutating import PodMutatingHandler, ReservationMutatingHandler
from koordinator.manager.webhooks.profile_cache import ProfileCache
from koordinator.simulate import virtual_time
from tests.manager.shared_parts import shared_parts

BATCH_CPU = "kubernetes.io/batch-cpu"


class Asked:
    """The handlers of pods on one cluster."""

    def __init__(self, shared: ManagerContext, cluster: MemoryCluster) -> None:
        self.shared, self.cluster = shared, cluster
        self._handlers = webhooks.admission(shared).handlers

    async def answer(self, pod: dict[str, Any], path: str = table.MUTATE_POD, **rest: Any) -> dict[str, Any]:
        """The `response` of the AdmissionReview."""
        request = {
            "uid": "1",
            "resource": {"resource": "pods"},
            "operation": "CREATE",
            "namespace": "default",
            "name": pod["metadata"].get("name", ""),
            "object": pod,
            **rest,
        }
        body = msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "request": request})
        answer = await review.review(self._handlers[path], body)
        response: dict[str, Any] = msgspec.json.decode(answer)["response"]
        return response

    async def mutated(self, pod: dict[str, Any], **rest: Any) -> dict[str, Any]:
        """The pod as the API server makes it with the patch of the answer."""
        response = await self.answer(pod, **rest)
        assert response["allowed"], response
        if "patch" not in response:
            return pod
        changed = json_patch.apply(pod, msgspec.json.decode(base64.b64decode(response["patch"])))
        assert isinstance(changed, dict)
        return changed

    async def refusal(self, pod: dict[str, Any], **rest: Any) -> tuple[int, str]:
        """Code and words."""
        response = await self.answer(pod, **rest)
        assert not response["allowed"], response
        return response["status"]["code"], response["status"]["message"]

    async def profile(self, name: str, **spec: Any) -> None:
        await self.cluster.create(ClusterColocationProfile, {"metadata": {"name": name}, "spec": spec})
        await asyncio.sleep(1)


def run(
    scenario: Callable[[Asked], Awaitable[None]],
    gates: str = "",
    cluster_type: type[MemoryCluster] = MemoryCluster,
) -> None:
    async def main(clock: clocks.LoopClock) -> None:
        cluster = cluster_type(registry.in_memory(clock, checks=False))
        for manifest in crd.manifests():
            await cluster.create(CustomResourceDefinition, manifest)
        if not [each for each in (await cluster.list(Namespace)).items if each.metadata.name == "default"]:
            await cluster.create(Namespace, {"metadata": {"name": "default"}})
        for name, value in (("koord-batch", 5_000), ("koord-prod", 9_000)):
            await cluster.create(PriorityClass, {"metadata": {"name": name}, "value": value})
        shared = shared_parts(cluster, gates=gates)
        asked = Asked(shared, cluster)
        async with asyncio.TaskGroup() as group:
            shared.factory.start(group)
            events = group.create_task(shared.events.run())
            await shared.factory.wait_synced()
            await scenario(asked)
            events.cancel()
            await shared.factory.stop()

    virtual_time.run_virtual(main)


def pod_body(name: str = "p", **spec: Any) -> dict[str, Any]:
    amounts = {"cpu": "1500m", "memory": "2Gi"}
    container = {"name": "main", "image": "x", "resources": {"requests": amounts, "limits": dict(amounts)}}
    return {
        "metadata": {"name": name, "labels": {"app": "spark"}},
        "spec": {"containers": [container], **spec},
    }


BATCH = {"qosClass": "BE", "priorityClassName": "koord-batch", "schedulerName": "koord-scheduler"}


def test_an_ordinary_pod_becomes_a_batch_pod_that_the_validating_webhook_lets_pass() -> None:
    async def scenario(asked: Asked) -> None:
        await asked.profile("spark", selector={"matchLabels": {"app": "spark"}}, **BATCH)

        pod = await asked.mutated(pod_body())

        assert pod["metadata"]["labels"][labels.QOS_CLASS] == "BE"
        assert pod["spec"]["priority"] == 5_000 and pod["spec"]["schedulerName"] == "koord-scheduler"
        requests = pod["spec"]["containers"][0]["resources"]["requests"]
        assert requests == {BATCH_CPU: "1500", "kubernetes.io/batch-memory": "2Gi"}
        annotation = msgspec.json.decode(pod["metadata"]["annotations"][labels.EXTENDED_RESOURCE_SPEC])
        assert annotation["containers"]["main"]["requests"] == requests
        assert (await asked.answer(pod, table.VALIDATE_POD))["allowed"]
        assert await asked.mutated(pod_body(), operation="UPDATE") == pod_body()
        assert await asked.mutated(pod_body(), subResource="status") == pod_body()

    run(scenario)


def test_a_namespace_and_a_priority_class_of_a_moment_ago_are_found() -> None:
    async def scenario(asked: Asked) -> None:
        await asked.profile(
            "p", namespaceSelector={"matchLabels": {"batch": "yes"}}, qosClass="BE", priorityClassName="new"
        )
        await asked.shared.factory.stop()  # the watch tells nothing any more
        await asked.cluster.create(PriorityClass, {"metadata": {"name": "new"}, "value": 5_500})
        await asked.cluster.create(Namespace, {"metadata": {"name": "fresh", "labels": {"batch": "yes"}}})

        pod = await asked.mutated(pod_body(), namespace="fresh")

        assert pod["spec"]["priority"] == 5_500

    run(scenario)


def test_a_namespace_that_nobody_knows_leaves_its_profiles_out_with_a_warning() -> None:
    async def scenario(asked: Asked) -> None:
        await asked.profile("any", labels={"any": "yes"})
        await asked.profile("some", namespaceSelector={"matchLabels": {"a": "b"}}, labels={"some": "yes"})

        response = await asked.answer(pod_body(), namespace="gone")
        pod = await asked.mutated(pod_body(), namespace="gone")

        assert pod["metadata"]["labels"] == {"app": "spark", "any": "yes"}
        assert 'namespace "gone" could not be looked up' in response["warnings"][0]

    run(scenario)


class _Silent(MemoryCluster):
    """An API that answers no question about one object."""

    asked = 0

    async def get(self, view: Any, name: str, namespace: str = "") -> Any:
        if view is Namespace:
            self.asked += 1
            raise ServiceUnavailable("no answer")
        return await super().get(view, name, namespace)


def test_a_burst_of_pods_asks_a_silent_api_once_a_second() -> None:
    async def scenario(asked: Asked) -> None:
        await asked.profile("some", namespaceSelector={"matchLabels": {"a": "b"}}, qosClass="BE")
        cluster = asked.cluster
        assert isinstance(cluster, _Silent)

        for _ in range(5):
            await asyncio.gather(*(asked.mutated(pod_body(), namespace="gone") for _ in range(10)))
        assert cluster.asked == 1

        await asyncio.sleep(2)
        await asked.mutated(pod_body(), namespace="gone")
        assert cluster.asked == 2

    run(scenario, cluster_type=_Silent)


def test_a_profile_that_cannot_be_used_says_so_once_as_an_event() -> None:
    async def scenario(asked: Asked) -> None:
        wrong = {"matchExpressions": [{"key": "app", "operator": "In"}]}
        await asked.profile("mute", selector=wrong, **BATCH)
        await asked.profile("half", selector={"matchLabels": {"app": "web"}}, probability="half")

        assert await asked.mutated(pod_body()) == pod_body()
        web = {**pod_body(), "metadata": {"generateName": "web-", "labels": {"app": "web"}}}
        code, message = await asked.refusal(web)
        await asked.cluster.patch(ClusterColocationProfile, "mute", {"metadata": {"annotations": {"x": "y"}}})
        await asyncio.sleep(5)

        assert code == 500
        assert "Pod default/web-*" in message
        assert "ClusterColocationProfile half: spec.probability: 'half' is neither a number nor N%" in message
        events = {(each.reason, each.message): each.count for each in (await asked.cluster.list(Event)).items}
        mute = "spec.selector: operator In of key 'app' needs values"
        half = "spec.probability: 'half' is neither a number nor N%"
        assert events == {("ProfileNotUsed", mute): 1, ("ProfileRefusesPods", half): 1}

        mended = {"spec": {"probability": 100, "labels": {"x": "y"}}}
        await asked.cluster.patch(ClusterColocationProfile, "half", mended)
        await asyncio.sleep(1)
        assert (await asked.mutated(web))["metadata"]["labels"]["x"] == "y"
        await asked.cluster.delete(ClusterColocationProfile, "half")
        await asyncio.sleep(1)
        assert await asked.mutated(web) == web

    run(scenario)


@pytest.mark.parametrize(
    ("gate", "rewritten", "annotated", "gpus"),
    [
        pytest.param("", True, True, True, id="all steps"),
        pytest.param("ColocationProfileSkipMutatingResources=true", False, False, True, id="resources stay"),
        pytest.param("DisableExtendedResourceSpec=true", True, False, True, id="no annotation"),
        pytest.param("DisableDeviceResourceSpec=true", True, True, False, id="GPUs stay"),
    ],
)
def test_each_gate_switches_one_step(gate: str, rewritten: bool, annotated: bool, gpus: bool) -> None:
    async def scenario(asked: Asked) -> None:
        await asked.profile("all", **BATCH)
        pod = pod_body()
        pod["spec"]["containers"][0]["resources"]["requests"]["koordinator.sh/gpu"] = "200"

        found = await asked.mutated(pod)

        requests = found["spec"]["containers"][0]["resources"]["requests"]
        annotations = found["metadata"].get("annotations", {})
        assert (BATCH_CPU in requests) is rewritten
        assert (labels.EXTENDED_RESOURCE_SPEC in annotations) is annotated
        assert ("koordinator.sh/gpu.shared" in requests) is gpus

    run(scenario, gate)


def test_half_a_card_too_much_is_refused_before_it_is_split_into_other_amounts() -> None:
    async def scenario(asked: Asked) -> None:
        pod = pod_body()
        pod["spec"]["containers"][0]["resources"] = {"requests": {"koordinator.sh/gpu": "150"}}

        code, message = await asked.refusal(pod)

        assert code == 400
        said = "koordinator.sh/gpu above 100 must be a multiple of it, not 150"
        assert message == f"spec.containers[0].resources.requests: {said}"

    run(scenario, "ValidatePodDeviceResource=true")


@pytest.mark.parametrize("path", [table.MUTATE_POD, table.VALIDATE_POD])
def test_an_amount_that_is_none_is_reported_by_its_path(path: str) -> None:
    async def scenario(asked: Asked) -> None:
        await asked.profile("all", **BATCH)
        pod = pod_body()
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "many"

        _, message = await asked.refusal(pod, path=path)

        assert message.startswith("Pod default/p: spec.containers[0].resources.requests.cpu: 'many' is not a")

    run(scenario)


def test_a_resize_in_place_is_held_to_the_rules_for_pods() -> None:
    async def scenario(asked: Asked) -> None:
        def web(cpu: str) -> dict[str, Any]:
            pod = pod_body()
            pod["metadata"]["labels"] = {labels.QOS_CLASS: "LSR"}
            pod["spec"]["priority"] = 9000
            pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
            pod["status"] = {
                "containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "1999m"}}}]
            }
            return pod

        resize = {"operation": "UPDATE", "subResource": "resize", "oldObject": web("2")}
        assert (await asked.answer(web("3"), table.VALIDATE_POD, **resize))["allowed"]
        refused = await asked.answer(web("2500m"), table.VALIDATE_POD, **resize)
        assert "the requested CPUs of LSR Pod must be integer" in refused["status"]["message"]

    run(scenario)


@pytest.mark.parametrize("amount", ["x", "1e", "1..5", "", "\u0661"])
@pytest.mark.parametrize("name", ["koordinator.sh/gpu", "nvidia.com/gpu", "koordinator.sh/gpu-core", "cpu"])
def test_an_amount_that_is_none_is_the_senders_mistake(name: str, amount: str) -> None:
    async def scenario(asked: Asked) -> None:
        pod = pod_body()
        pod["spec"]["containers"][0]["resources"] = {"requests": {name: amount}, "limits": {name: amount}}
        mutating = await asked.answer(pod, table.MUTATE_POD)
        validating = await asked.answer(pod, table.VALIDATE_POD)

        assert {mutating["status"]["code"], validating["status"]["code"]} <= {200, 400}
        if name == "koordinator.sh/gpu":
            assert mutating["status"]["code"] == 400
            assert "spec.containers[0].resources.requests.koordinator.sh/gpu" in mutating["status"]["message"]

    run(scenario)


def test_each_step_is_timed_and_a_refusal_is_counted_where_it_happened() -> None:
    async def scenario(asked: Asked) -> None:
        pod = pod_body()
        pod["metadata"]["annotations"] = {labels.EXTENDED_RESOURCE_SPEC: "{"}
        await asked.mutated(pod_body())
        code, message = await asked.refusal(pod)
        await asked.answer(pod_body(), table.VALIDATE_POD)

        assert code == 400 and labels.EXTENDED_RESOURCE_SPEC in message
        text = asked.shared.metrics.internal.text()
        name = "koord_manager_webhook_webhook_duration_milliseconds_count"
        counted = {line.split("{")[1] for line in text.splitlines() if line.startswith(name)}

        def line(webhook: str, step: str, status: str, count: int) -> str:
            own = f'webhook_type="{webhook}",object_type="pod",operation="CREATE",plugin_name="{step}"'
            return f'{own},status="{status}"}} {count}'

        assert counted == {
            line("mutate", "ClusterColocationProfile", "allowed", 2),
            line("mutate", "ExtendedResourceSpec", "allowed", 1),
            line("mutate", "ExtendedResourceSpec", "rejected", 1),
            line("mutate", "DeviceResourceSpec", "allowed", 1),
            line("validate", "ClusterReservation", "allowed", 1),
            line("validate", "ClusterColocationProfile", "allowed", 1),
            line("validate", "ElasticQuota", "allowed", 1),
            line("validate", "DeviceResource", "allowed", 1),
            line("validate", "EvaluateQuota", "allowed", 1),
        }

    run(scenario)


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["", "1", "-1", "{", "x", "10Gi", "50%"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["name", "cpu", "a"]), inner, max_size=2)
    ),
    max_leaves=4,
)
TEXTS = st.dictionaries(
    st.sampled_from(["a", "b", labels.QOS_CLASS, labels.PRIORITY_CLASS, labels.EXTENDED_RESOURCE_SPEC]),
    st.sampled_from(["", "BE", "koord-batch", "{", '{"containers":{}}']),
)
NEEDS = st.fixed_dictionaries({}, optional={"requests": TEXTS | ANY, "limits": ANY})
CONTAINERS = st.lists(st.fixed_dictionaries({"name": ANY}, optional={"resources": NEEDS | ANY}), max_size=2)
POD = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries({}, optional={"labels": TEXTS | ANY, "annotations": TEXTS | ANY})
        | ANY,
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": CONTAINERS | ANY,
                "initContainers": CONTAINERS | ANY,
                "overhead": ANY,
                "priority": ANY,
                "resources": NEEDS | ANY,
                "affinity": ANY,
            },
        )
        | ANY,
    },
)
SELECTOR = st.fixed_dictionaries(
    {},
    optional={
        "matchLabels": TEXTS | ANY,
        "matchExpressions": st.lists(
            st.fixed_dictionaries({"key": st.just("a"), "operator": st.sampled_from(["In", "Exists", "?"])}),
            max_size=2,
        ),
    },
)
PROFILE = st.fixed_dictionaries(
    {},
    optional={
        "selector": SELECTOR | ANY,
        "namespaceSelector": SELECTOR,
        "probability": ANY,
        "qosClass": st.sampled_from(["BE", "LS"]),
        "labels": TEXTS,
        "labelKeysMapping": st.dictionaries(st.sampled_from("ab"), st.sampled_from("abc")),
        "labelSuffixes": st.dictionaries(st.sampled_from("ab"), st.sampled_from(["-s", ""])),
        "patch": POD | ANY | st.fixed_dictionaries({"metadata": st.fixed_dictionaries({"$patch": ANY})}),
        "priorityClassName": st.sampled_from(["", "koord-batch", "gone"]),
    },
)


@settings(max_examples=50, deadline=None)
@given(pods=st.lists(POD, min_size=1, max_size=4), profiles=st.lists(PROFILE, max_size=3))
def test_neither_malformed_pods_nor_malformed_profiles_break_the_handlers(
    pods: list[Any], profiles: list[Any]
) -> None:
    async def scenario() -> None:
        cluster = MemoryCluster(registry.in_memory(clocks.FixedClock(), checks=False))
        shared = shared_parts(cluster)
        informer = shared.factory.informer(ClusterColocationProfile)
        cache = ProfileCache(shared)
        for number, spec in enumerate(profiles):
            try:
                view = msgspec.convert(
                    {"metadata": {"name": f"p{number}"}, "spec": spec}, ClusterColocationProfile
                )
            except msgspec.ValidationError:
                continue  # the informer skips it
            informer._store(view)
        handlers: dict[str, review.Handler] = {
            "pods": PodMutatingHandler(shared, cache),
            "reservations": ReservationMutatingHandler(shared, cache),
        }
        for pod in pods:
            for resource, handler in handlers.items():
                request = {
                    "resource": {"resource": resource},
                    "operation": "CREATE",
                    "namespace": "d",
                    "object": pod,
                }
                body = msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "request": request})

                response = msgspec.json.decode(await review.review(handler, body))["response"]

                message = response["status"]["message"]
                assert response["allowed"] or message
                kinds = ("Type", "Attribute", "Key", "Index", "Assertion", "Value", "Unicode")
                assert not any(f"{kind}Error:" in message for kind in kinds), message
                if "patch" in response:
                    json_patch.apply(pod, msgspec.json.decode(base64.b64decode(response["patch"])))

    asyncio.run(scenario())
