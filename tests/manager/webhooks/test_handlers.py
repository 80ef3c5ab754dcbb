"""The admission handlers on an in-process cluster: caches fill, requests are answered, the next one counts."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from koordinator import clock as clocks
from koordinator.api import crd, labels
from koordinator.api.core import ConfigMap, Namespace, Pod
from koordinator.api.groups import (
    ClusterColocationProfile,
    CustomResourceDefinition,
    ElasticQuotaProfile,
    PriorityClass,
)
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.manager.options import BindingAdmissionOptions, ManagerOptions
from koordinator.manager.parts import ManagerContext
from koordinator.manager.quota.validation import QuotaRules
from koordinator.manager.webhooks import pod_mutating, pod_validating, quota_admission, review
from koordinator.manager.webhooks.pod_mutating import ReservationMutatingHandler
from koordinator.manager.webhooks.pod_quotas import PodQuotas
from koordinator.manager.webhooks.profile_cache import ProfileCache
from koordinator.manager.webhooks.quota_topology import NOTE_S, QuotaTopology
from koordinator.simulate import virtual_time
from tests.manager.quota.builders import quota_body
from tests.manager.shared_parts import shared_parts

GATES = "EnablePodEnhancedValidator=true,ValidatePodDeviceResource=true,MultiQuotaTree=true"
CONFIG_NAMESPACE = "koordinator-system"


class _Quotas(PodQuotas):
    """Quotas that have room for all pods but big ones, and note who took some."""

    def __init__(self, shared: ManagerContext, topology: QuotaTopology) -> None:
        update = shared.options.quota_update
        super().__init__(shared.cluster, shared.factory, topology, shared.gates, update, shared.rng)
        self.evaluated: list[str] = []

    async def evaluate(self, pod: Pod, _: Pod | None, dry_run: bool) -> review.AdmissionVerdict:
        if not dry_run:
            self.evaluated.append(pod.metadata.name)
        return review.denied("exceeded quota") if pod.metadata.labels.get("size") == "big" else review.ALLOWED


class Webhooks:
    """All handlers on one cluster, asked as the API server asks."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        binding = BindingAdmissionOptions(user_names=("koord",), namespaces=("*",))
        shared = shared_parts(cluster, gates=GATES, options=ManagerOptions(binding_admission=binding))
        self.factory, self.metrics = shared.factory, shared.metrics
        self.topology = QuotaTopology(self.factory, cluster.clock)
        look_up = quota_admission.ParentLookUp(cluster, self.topology)
        profiles, quotas = ProfileCache(shared), _Quotas(shared, self.topology)
        self.evaluated = quotas.evaluated
        self.handlers: dict[str, review.Handler] = {
            "quota-mutate": quota_admission.QuotaMutatingHandler(self.topology, look_up),
            "quota": quota_admission.QuotaValidatingHandler(self.topology, QuotaRules(), look_up),
            "pod-mutate": pod_mutating.PodMutatingHandler(shared, profiles, quotas),
            "pod": pod_validating.PodValidatingHandler(shared, quotas),
            "binding": pod_validating.PodBindingHandler(shared),
            "reservation": ReservationMutatingHandler(shared, profiles),
        }

    async def ask(
        self, handler: str, resource: str, body: dict[str, Any] | None, **rest: Any
    ) -> dict[str, Any]:
        """The `response` of the AdmissionReview."""
        metadata = (body or rest.get("oldObject") or {}).get("metadata", {})
        request = {
            "uid": "1",
            "resource": {"resource": resource},
            "operation": "CREATE",
            "name": metadata.get("name", ""),
            "namespace": metadata.get("namespace", "default"),
            "object": body,
            **rest,
        }
        envelope = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        answer = await review.review(self.handlers[handler], msgspec.json.encode(envelope))
        response: dict[str, Any] = msgspec.json.decode(answer)["response"]
        return response

    async def refusal(self, handler: str, resource: str, body: dict[str, Any] | None, **rest: Any) -> str:
        """Why it is refused, empty when it is allowed."""
        response = await self.ask(handler, resource, body, **rest)
        return "" if response["allowed"] else str(response["status"]["message"])


def run(scenario: Callable[[Webhooks], Awaitable[None]]) -> None:
    """A scenario beside running informers."""

    async def main(clock: clocks.LoopClock) -> None:
        cluster = MemoryCluster(registry.in_memory(clock, checks=False))
        for manifest in crd.manifests():
            await cluster.create(CustomResourceDefinition, manifest)
        names = {ns.metadata.name for ns in (await cluster.list(Namespace)).items}
        for name in {"default", "quotas", CONFIG_NAMESPACE} - names:
            await cluster.create(Namespace, {"metadata": {"name": name}})
        webhooks = Webhooks(cluster)
        async with asyncio.TaskGroup() as group:
            webhooks.factory.start(group)
            await webhooks.factory.wait_synced()
            await scenario(webhooks)
            await webhooks.factory.stop()

    virtual_time.run_virtual(main)


def pod_body(name: str = "p", requests: dict[str, str] | None = None, **own: str) -> dict[str, Any]:
    container = {"name": "c", "image": "x", "resources": {"requests": requests or {}}}
    return {
        "metadata": {"name": name, "namespace": "default", "labels": own},
        "spec": {"containers": [container]},
    }


def test_a_burst_of_quotas_is_checked_against_itself_before_the_watch_tells() -> None:
    async def scenario(webhooks: Webhooks) -> None:
        async def create(body: dict[str, Any], **rest: Any) -> str:
            return await webhooks.refusal("quota", "elasticquotas", body, **rest)

        assert await create(quota_body("team", is_parent=True, low={"cpu": "10"})) == ""
        assert await create(quota_body("web", "team", low={"cpu": "6"}), dryRun=True) == ""
        assert await create(quota_body("web", "team", low={"cpu": "6"})) == ""
        assert "brothers" in await create(quota_body("db", "team", low={"cpu": "5"}))
        elsewhere = quota_body("web", "team", low={"cpu": "1"})
        elsewhere["metadata"]["namespace"] = "default"
        assert "exists" in await create(elsewhere)

        deletion = {"operation": "DELETE", "oldObject": quota_body("web", "team")}
        assert await webhooks.refusal("quota", "elasticquotas", None, **deletion) == ""
        assert await create(quota_body("db", "team", low={"cpu": "5"})) == ""

    run(scenario)


def test_the_watch_corrects_what_the_webhook_noted() -> None:
    async def scenario(webhooks: Webhooks) -> None:
        await webhooks.cluster.create(ElasticQuota, quota_body("team", is_parent=True), "quotas")
        await asyncio.sleep(1)
        assert await webhooks.refusal("quota", "elasticquotas", quota_body("team")) != ""

        await webhooks.cluster.delete(ElasticQuota, "team", "quotas")
        await asyncio.sleep(1)
        assert await webhooks.refusal("quota", "elasticquotas", quota_body("team")) == ""

    run(scenario)


def test_a_request_that_was_refused_later_on_is_forgotten() -> None:
    async def scenario(webhooks: Webhooks) -> None:
        async def create(name: str) -> str:
            return await webhooks.refusal("quota", "elasticquotas", quota_body(name))

        await webhooks.cluster.create(ElasticQuota, quota_body("kept"), "quotas")
        await asyncio.sleep(1)
        child = quota_body("child", "phantom")
        assert await create("phantom") == ""  # another webhook refuses it
        deletion = {"operation": "DELETE", "oldObject": quota_body("kept")}
        assert await webhooks.refusal("quota", "elasticquotas", None, **deletion) == ""  # and this
        assert await create("phantom") == "", "a second try is not held up by the first"
        assert "not a parent" in await webhooks.refusal("quota", "elasticquotas", child)

        await asyncio.sleep(NOTE_S + 1)
        assert "not find parentInfo" in await webhooks.refusal("quota", "elasticquotas", child)
        assert "exists" in await create("kept")

    run(scenario)


def test_a_new_quota_is_completed_by_a_patch() -> None:
    async def scenario(webhooks: Webhooks) -> None:
        response = await webhooks.ask("quota-mutate", "elasticquotas", quota_body("web"))
        orphan = await webhooks.refusal("quota-mutate", "elasticquotas", quota_body("web", "nobody"))

        assert response["allowed"] and response["patchType"] == "JSONPatch"
        assert "parent not exist: nobody" in orphan

    run(scenario)


def test_pods_are_checked_rule_by_rule_and_reserve_only_when_nothing_else_is_wrong() -> None:
    async def scenario(webhooks: Webhooks) -> None:
        rules = {"enable": "true", "rules": '[{"name": "r", "requiredLabels": ["app"]}]'}
        config = {"metadata": {"name": "pod-enhanced-validator-config"}, "data": rules}
        await webhooks.cluster.create(ConfigMap, config, CONFIG_NAMESPACE)
        await webhooks.cluster.create(ElasticQuota, quota_body("team", is_parent=True), "quotas")
        await asyncio.sleep(1)

        async def create(body: dict[str, Any], **rest: Any) -> str:
            return await webhooks.refusal("pod", "pods", body, **rest)

        assert "parentQuotaGroup,quota:team" in await create(pod_body(app="a", **{labels.QUOTA_NAME: "team"}))
        assert "must be above 0" in await create(pod_body(requests={"koordinator.sh/gpu": "0"}, app="a"))
        assert "required label 'app' is missing" in await create(pod_body())
        assert "is not a quantity" in await create(pod_body(requests={"cpu": "many"}, app="a"))
        assert await create(pod_body("tried", app="a"), dryRun=True) == ""
        assert await create(pod_body("tried", app="a", size="big"), dryRun=True) == "exceeded quota"
        assert webhooks.evaluated == []

        assert await create(pod_body("small", app="a")) == ""
        assert await create(pod_body("large", app="a", size="big")) == "exceeded quota"
        assert webhooks.evaluated == ["small", "large"]

        changed = pod_body("small", app="a", **{labels.QOS_CLASS: "LS"})
        update = {"operation": "UPDATE", "oldObject": pod_body("small", app="a")}
        assert "field is immutable" in await create(changed, **update)
        update["oldObject"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        assert await create(changed, **update) == "", "a pod that goes is let go"

        await webhooks.cluster.delete(ConfigMap, "pod-enhanced-validator-config", CONFIG_NAMESPACE)
        await asyncio.sleep(1)
        assert await create(pod_body("free")) == ""

    run(scenario)


def test_a_pod_is_bound_to_the_nodes_of_its_tree_out_of_caches() -> None:
    async def scenario(webhooks: Webhooks) -> None:
        await webhooks.cluster.create(
            ElasticQuota, quota_body("team", tree="t", namespaces=["default"]), "quotas"
        )
        profile = {
            "metadata": {"name": "pool", "labels": {labels.QUOTA_TREE_ID: "t"}},
            "spec": {"quotaName": "team", "nodeSelector": {"matchLabels": {"pool": "a"}}},
        }
        await webhooks.cluster.create(ElasticQuotaProfile, profile, "quotas")
        await asyncio.sleep(1)

        request = review.AdmissionRequest(
            resource=review.GroupVersionResource(resource="pods"),
            operation="CREATE",
            object=pod_body(),
            namespace="default",
        )
        bound = (await webhooks.handlers["pod-mutate"](request)).obj

        assert bound is not None
        (term,) = bound["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        assert term["matchExpressions"] == [{"key": "pool", "operator": "In", "values": ["a"]}]

    run(scenario)


def test_only_listed_users_bind_pods() -> None:
    async def scenario(webhooks: Webhooks) -> None:
        await webhooks.cluster.create(Pod, pod_body(), "default")
        await asyncio.sleep(1)

        async def bind(user: str) -> dict[str, Any]:
            rest = {"subResource": "binding", "userInfo": {"username": user, "groups": []}}
            return await webhooks.ask("binding", "pods", pod_body(), **rest)

        assert (await bind("system:koord-scheduler"))["allowed"]
        refused = await bind("system:kube-scheduler")
        assert (refused["allowed"], refused["status"]["code"]) == (False, 403)
        assert webhooks.metrics.binding_decisions.values == {("allowed_username",): 1, ("denied",): 1}

    run(scenario)


def test_profiles_change_reservations_and_their_templates() -> None:
    async def scenario(webhooks: Webhooks) -> None:
        await webhooks.cluster.create(PriorityClass, {"metadata": {"name": "koord-batch"}, "value": 5000})
        profile = {
            "metadata": {"name": "batch"},
            "spec": {
                "namespaceSelector": {"matchLabels": {"no": "such"}},
                "selector": {"matchLabels": {"app": "a"}},
                "qosClass": "BE",
                "priorityClassName": "koord-batch",
                "schedulerName": "koord-scheduler",
                "patch": {"spec": {"ttl": "1h"}},
            },
        }
        await webhooks.cluster.create(ClusterColocationProfile, profile)
        await asyncio.sleep(1)
        container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
        body = {
            "metadata": {"name": "r", "labels": {"app": "a"}},
            "spec": {"template": {"spec": {"containers": [container]}}},
        }
        request = review.AdmissionRequest(
            resource=review.GroupVersionResource(resource="reservations"), operation="CREATE", object=body
        )

        verdict = await webhooks.handlers["reservation"](request)

        assert verdict.obj is not None
        assert verdict.obj["metadata"]["labels"] == {"app": "a", labels.QOS_CLASS: "BE"}
        template = {
            "containers": [container],
            "schedulerName": "koord-scheduler",
            "priorityClassName": "koord-batch",
            "priority": 5000,
        }
        found = verdict.obj["spec"]["template"]["spec"]
        assert {key: found.get(key) for key in template} == template
        assert verdict.obj["spec"]["ttl"] == "1h"
        for change in (
            {"operation": "UPDATE"},
            {"sub_resource": "status"},
            {"object": None},
            {"resource": review.GroupVersionResource(resource="pods")},
        ):
            other = msgspec.structs.replace(request, **change)
            assert await webhooks.handlers["reservation"](other) is review.ALLOWED

    run(scenario)


def test_refused_reservations_say_why_and_count_as_rejected() -> None:
    async def scenario(webhooks: Webhooks) -> None:
        spec = {"selector": {"matchLabels": {"app": "a"}}, "priorityClassName": "no-such"}
        profile = {"metadata": {"name": "batch"}, "spec": spec}
        await webhooks.cluster.create(ClusterColocationProfile, profile)
        await asyncio.sleep(1)
        template = {"template": {"spec": {"containers": []}}}

        async def ask(labels: dict[str, Any]) -> tuple[str, int]:
            body = {"metadata": {"name": "r", "labels": labels}, "spec": template}
            answer = await webhooks.ask("reservation", "reservations", body, namespace="")
            status = answer.get("status") or {"message": "", "code": 200}
            return status["message"], status["code"]

        def counts() -> dict[str, int]:
            head = "koord_manager_webhook_webhook_duration_milliseconds_count{"
            lines = webhooks.metrics.internal.text().splitlines()
            reported = [
                line for line in lines if line.startswith(head) and 'object_type="reservation"' in line
            ]
            return {
                line.partition('status="')[2].partition('"')[0]: int(line.split()[-1]) for line in reported
            }

        message, code = await ask({"app": "a"})
        assert (code, message.startswith("Reservation r: ")) == (500, True)
        assert 'no PriorityClass "no-such" exists' in message
        assert counts() == {"rejected": 1}

        message, code = await ask({"app": 5})
        assert (code, message.startswith("Reservation r: ")) == (400, True)
        assert counts() == {"rejected": 2}

        assert await ask({"app": "b"}) == ("", 200)
        assert counts() == {"rejected": 2, "allowed": 1}

    run(scenario)


def test_only_pods_and_their_resizes_are_validated() -> None:
    async def scenario(webhooks: Webhooks) -> None:
        nameless = {"metadata": {"name": 5}}

        async def allowed(resource: str, sub_resource: str, operation: str = "CREATE") -> bool:
            request = review.AdmissionRequest(
                resource=review.GroupVersionResource(resource=resource),
                sub_resource=sub_resource,
                operation=operation,
                object=nameless,
                old_object=nameless,
            )
            return (await webhooks.handlers["pod"](request)).allowed

        for sub_resource in ("", "resize"):
            assert not await allowed("pods", sub_resource)
            assert not await allowed("pods", sub_resource, "UPDATE")
            assert await allowed("pods", sub_resource, "DELETE")
            assert await allowed("nodes", sub_resource)
        for sub_resource in ("status", "binding", "ephemeralcontainers"):
            assert await allowed("pods", sub_resource)

    run(scenario)
