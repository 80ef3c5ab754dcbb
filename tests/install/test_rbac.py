"""Roles allow what components do, and no more."""

import asyncio
import random
from pathlib import Path

import pytest

from koordinator.api import crd, defaults, kinds
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.meta import Object
from koordinator.clock import FixedClock, LoopClock
from koordinator.cluster.leader import ElectionConfig, LeaderElector
from koordinator.cluster.memory import MemoryCluster
from koordinator.install import configs, rbac
from koordinator.install.steps import resource_of_body
from koordinator.install.values import Values
from koordinator.koordlet.states.node import FollowedState
from koordinator.local import registry
from koordinator.manager.manager import Manager
from koordinator.manager.metrics import LEASE
from koordinator.manager.webhooks.certificates import CertificateSet
from koordinator.manager.webhooks.configuration import WebhookSettings
from koordinator.manager.webhooks.sync import WebhookSync
from koordinator.scheduler.scheduler import Scheduler
from koordinator.simulate import virtual_time
from tests.install.roles import RoleCluster, Roles, calls, pod_calls
from tests.scheduler.fake_cluster import FakeCluster

PACKAGES = {
    rbac.MANAGER: "manager",
    rbac.SCHEDULER: "scheduler",
    rbac.KOORDLET: "koordlet",
    rbac.DESCHEDULER: "descheduler",
}

Asked = set[tuple[str, str, str]]
"""(verb, group, resource)"""


def _all(verbs: str, group: str, *resources: str) -> Asked:
    return {(verb, group, resource) for verb in verbs.split() for resource in resources}


_SHARED = _all("create patch", "", "events")
_LEASE = _all("create get list watch patch", "coordination.k8s.io", "leases")
_REVIEWS = _all("create", "authentication.k8s.io", "tokenreviews") | _all(  # cluster.delegated_auth
    "create", "authorization.k8s.io", "subjectaccessreviews"
)
# Calls that name no view where they are made; each with the module that makes them.
INDIRECT: dict[str, Asked] = {
    rbac.MANAGER: _SHARED
    | _LEASE
    | _REVIEWS
    | _all("list watch create patch delete", "slo.koordinator.sh", "nodemetrics", "nodeslos")  # node_objects
    | _all("get", "", "pods")  # profile_controller: the whole pod
    | _all("get", "", "namespaces")  # webhooks.profile_cache
    | _all("get", "scheduling.k8s.io", "priorityclasses")  # webhooks.profile_cache
    | _all(  # webhooks.sync
        "get list watch patch",
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
    ),
    rbac.SCHEDULER: _SHARED
    | _LEASE
    | _REVIEWS
    | _all(
        "patch", "scheduling.koordinator.sh", "reservations"
    ),  # as DefaultPreBind does with whatever is placed
    rbac.DESCHEDULER: _SHARED
    | _LEASE
    | _REVIEWS
    | _all("get", "", "pods")  # migration.controller: the whole pod, and what a cache does not have yet
    | _all("get", "scheduling.koordinator.sh", "reservations")  # the same
    | _all("delete", "scheduling.koordinator.sh", "podmigrationjobs")  # migration.controller: those long over
    | _all("patch", "", "pods", "nodes")  # cycle: deletion costs, cordons
    | _all(
        "get patch", "apps", "deployments/scale", "replicasets/scale"
    )  # migration.workloads, with the next two
    | _all("get patch", "", "replicationcontrollers/scale")
    | _all("get", "apps.kruise.io", "clonesets/scale", "statefulsets/scale"),
    rbac.KOORDLET: _SHARED | _all("get", "", "nodes/proxy"),  # asked by the kubelet, of requests to it
}


def asked_by(component: str) -> Asked:
    """What the code of a component asks for."""
    found = {
        (verb, view.resource.group, f"{view.resource.plural}/{sub}" if sub else view.resource.plural)
        for _, verb, view, sub in calls(PACKAGES[component])
    }
    for verb, resource in (("bind", "pods/binding"), ("evict", "pods/eviction")):
        if verb in pod_calls(PACKAGES[component]):
            found |= _all("create", "", resource)
    if component == rbac.SCHEDULER:
        gates = FeatureGates.of(Component.SCHEDULER, "DRADeviceTaints=true,DRADeviceTaintRules=true")
        scheduler = Scheduler(FakeCluster(FixedClock()), network_topology=True, gates=gates)
        views: list[type[Object]] = [informer.view for informer in scheduler.caches.informers]
        for view in views:
            found |= _all("list watch", view.resource.group, view.resource.plural)
    if component == rbac.KOORDLET:
        for state in FollowedState.__subclasses__():
            found |= _all("list watch", state.view.resource.group, state.view.resource.plural)
    return found | INDIRECT[component]


def allowed_to(component: str) -> Asked:
    return {
        (verb, rule.group, resource)
        for rule in rbac.rules()[component]
        for resource in rule.resources
        for verb in rule.verbs
    }


@pytest.mark.parametrize("component", list(PACKAGES))
def test_everything_that_the_code_asks_for_is_allowed(component: str) -> None:
    assert asked_by(component) - allowed_to(component) == set(), (
        "add it to install/rbac.yaml, with the reason"
    )


@pytest.mark.parametrize("component", list(PACKAGES))
def test_nothing_is_allowed_that_the_code_does_not_ask_for(component: str) -> None:
    surplus = allowed_to(component) - asked_by(component)
    assert surplus == set(), "take it out of install/rbac.yaml"


@pytest.mark.parametrize("component", list(rbac.rules()))
def test_no_role_has_wildcards_or_reads_secrets_of_others(component: str) -> None:
    for rule in rbac.rules()[component]:
        assert "*" not in (rule.group, *rule.resources, *rule.verbs)
        assert rule.why
        if "secrets" in rule.resources:
            assert rule.in_namespace and (rule.names or rule.verbs == ("create",))
        assert not {"escalate", "bind", "impersonate"} & set(rule.verbs)
        assert not {"pods/exec", "serviceaccounts/token"} & set(rule.resources)


@pytest.mark.parametrize("component", list(rbac.rules()))
def test_the_docs_tell_every_rule(component: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "install.md").read_text()
    section = text.partition(f"### {component}\n")[2].partition("\n\n")[0]

    assert section.splitlines()[2:] == [documented(rule) for rule in rbac.rules()[component]]


def documented(rule: rbac.PermissionRule) -> str:
    """The row of a rule in docs/install.md."""
    resources = ", ".join(f"`{name}`" for name in (*rule.resources, *rule.urls)) + (
        f" ({rule.group})" if rule.group else ""
    )
    where = [f"only {', '.join(f'`{name}`' for name in rule.names)}"] if rule.names else []
    where += ["own namespace"] if rule.in_namespace else []
    return f"| {resources} | {', '.join(rule.verbs)} | {', '.join(where)} | {rule.why} |"


def test_a_name_restricts_as_an_api_server_would() -> None:
    roles = Roles(rbac.MANAGER)

    roles.check("get", "", "secrets", "koordinator-system", "koordinator-webhook-certs")
    for refused in (
        ("get", "", "secrets", "koordinator-system", "other"),
        ("get", "", "secrets", "default", "koordinator-webhook-certs"),
        ("list", "", "secrets", "koordinator-system", ""),
        ("list", "", "configmaps", "", ""),
        ("delete", "", "nodes", "", "n"),
    ):
        with pytest.raises(Exception, match="no rule allows"):
            roles.check(*refused)
    assert len(roles.refused) == 5 and len(roles.used) == 1


# --- A manager that may do only what its role says ---

MINUTES = 4


def test_a_whole_manager_lives_within_its_role() -> None:
    """All gates, all controllers, elected, with its certificate and webhooks; nodes come and go."""
    roles = Roles(rbac.MANAGER)
    certificates: list[CertificateSet] = []

    async def main(clock: LoopClock) -> None:
        backend = registry.in_memory(clock, checks=False)
        admin = MemoryCluster(backend)
        for body in (*crd.manifests(), *defaults.objects(), *configs.webhook_configurations(Values())):
            namespace = body["metadata"].get("namespace", "")
            if body["kind"] != "Namespace":
                await admin.create(kinds.view_of(resource_of_body(body)), body, namespace)
        for body in world():
            await admin.create(
                kinds.view_of(resource_of_body(body)), body, body["metadata"].get("namespace", "")
            )
        cluster = RoleCluster(backend, roles)
        manager = Manager(cluster, gates=FeatureGates.of(Component.MANAGER, "AllAlpha=true,AllBeta=true"))
        settings = WebhookSettings()
        sync = WebhookSync(
            cluster,
            manager.shared.factory,
            settings,
            manager.handlers.keys(),
            certificates.append,
            rng=random.Random(1),
        )
        election = LeaderElector(
            RoleCluster(backend, roles),
            ElectionConfig(name=LEASE, namespace=defaults.NAMESPACE, identity="a"),
            rng=random.Random(2),
        )
        tasks = [asyncio.create_task(sync.run()), asyncio.create_task(manager.run(election))]
        await asyncio.sleep(60 * MINUTES)
        node = kinds.view_of(kinds.by_kind("", "Node"))  # type: ignore[arg-type]
        await admin.delete(node, "node-1")
        slo = kinds.view_of(kinds.by_kind("slo.koordinator.sh", "NodeSLO"))  # type: ignore[arg-type]
        assert {each.metadata.name for each in (await admin.list(slo)).items} == {"node-0", "node-1"}
        await asyncio.sleep(60 * MINUTES)
        assert {each.metadata.name for each in (await admin.list(slo)).items} == {"node-0"}
        for task in tasks:
            assert not task.done(), task.exception()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    virtual_time.run_virtual(main)

    assert sorted(set(roles.refused)) == []
    assert certificates
    used = {(verb, rule.group, resource) for rule, resource, verb in roles.used}
    # What this scenario must have reached, so that it cannot pass by doing nothing.
    for verb, group, resource in (
        ("patch", "", "nodes/status"),
        ("create", "", "secrets"),
        ("patch", "admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
        ("delete", "slo.koordinator.sh", "nodeslos"),
        ("create", "scheduling.sigs.k8s.io", "elasticquotas"),
        ("patch", "coordination.k8s.io", "leases"),
    ):
        assert (verb, group, resource) in used, (verb, resource)


def world() -> list[dict[str, object]]:
    """Two nodes that report, a pod, a profile of each kind."""
    amounts = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    bodies: list[dict[str, object]] = []
    for number in range(2):
        name = f"node-{number}"
        status = {"capacity": amounts, "allocatable": dict(amounts)}
        bodies.append(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {"pool": "a"}},
                "status": status,
            }
        )
        usage = {"systemUsage": {"resources": {"cpu": "1", "memory": "4Gi"}}}
        bodies.append(
            {
                "apiVersion": "slo.koordinator.sh/v1alpha1",
                "kind": "NodeMetric",
                "metadata": {"name": name},
                "status": {"updateTime": "1970-01-01T00:00:00Z", "nodeMetric": usage},
            }
        )
    selector = {"matchLabels": {"pool": "a"}}
    bodies.append(
        {
            "apiVersion": "quota.koordinator.sh/v1alpha1",
            "kind": "ElasticQuotaProfile",
            "metadata": {"name": "pool-a", "namespace": "default"},
            "spec": {"quotaName": "root-a", "nodeSelector": selector},
        }
    )
    bodies.append(
        {
            "apiVersion": "config.koordinator.sh/v1alpha1",
            "kind": "ClusterColocationProfile",
            "metadata": {"name": "batch"},
            "spec": {"selector": {"matchLabels": {"app": "batch"}}, "qosClass": "BE"},
        }
    )
    return bodies
