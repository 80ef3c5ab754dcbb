"""Applying and removing an installation against our API server over HTTP."""

import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from koordinator.api import kinds
from koordinator.api.meta import Resource
from koordinator.clock import SystemClock
from koordinator.cluster import config, errors
from koordinator.cluster.kube import KubeCluster
from koordinator.install import objects, steps, values
from koordinator.install.steps import Api, ApplyOutcome, ApplyStep, resource_of
from koordinator.install.values import EVERYTHING, Values
from koordinator.local import registry
from koordinator.local.apiserver import ApiServer
from koordinator.local.schema.catalog import Catalog
from koordinator.manager.webhooks import configuration


@pytest.fixture
async def cluster() -> AsyncIterator[KubeCluster]:
    catalog = Catalog(kinds.BUILT_IN)
    backend = registry.in_memory(SystemClock(), seed=1, catalog=catalog)
    server = ApiServer(backend)
    await server.start()
    try:
        async with KubeCluster(config.from_url(server.url), rng=random.Random(1)) as cluster:
            yield cluster
    finally:
        await server.stop()
        await backend.close()


@pytest.fixture
def api(cluster: KubeCluster) -> Api:
    return Api(cluster.transport)


def of(**settings: Any) -> Values:
    """Without CRDs, which take longest, unless the settings say so."""
    return values.read([("test", {"crds": {"managed": False}, **settings})])


LEAN = of()


async def outcomes(work: AsyncIterator[ApplyStep]) -> dict[str, ApplyStep]:
    found = [step async for step in work]
    assert len({step.name for step in found}) == len(found)
    return {step.name: step for step in found}


def only(found: dict[str, ApplyStep], outcome: ApplyOutcome) -> list[str]:
    return [name for name, step in found.items() if step.outcome is outcome]


async def test_everything_is_created_in_order_and_a_second_time_changes_nothing(api: Api) -> None:
    first = await outcomes(steps.apply(api, Values()))

    assert list(first) == [objects.key(body) for body in objects.objects(Values())]
    # Our API server makes namespaces by itself.
    assert set(first) - set(only(first, ApplyOutcome.CREATED)) <= {"Namespace koordinator-system"}
    again = await outcomes(steps.apply(api, Values()))
    assert only(again, ApplyOutcome.UNCHANGED) == list(again) == list(first)


async def test_an_upgrade_changes_what_differs_and_names_what_is_left_over(api: Api) -> None:
    await outcomes(steps.apply(api, LEAN))

    upgraded = of(manager={"replicas": 3}, koordlet={"enabled": False})
    found = await outcomes(steps.apply(api, upgraded))

    assert only(found, ApplyOutcome.CHANGED) == [
        "Namespace koordinator-system",  # needs no right to privileged pods any more
        "Deployment koordinator-system/koord-manager",
    ]
    left = only(found, ApplyOutcome.LEFT_OVER)
    assert "DaemonSet koordinator-system/koordlet" in left and "ClusterRole koordlet" in left
    assert only(found, ApplyOutcome.DELETED) == []

    pruned = await outcomes(steps.apply(api, upgraded, prune=True))
    assert sorted(only(pruned, ApplyOutcome.DELETED)) == sorted(left)
    assert only(await outcomes(steps.apply(api, upgraded)), ApplyOutcome.LEFT_OVER) == []


async def test_pruning_spares_crds_namespace_priority_classes_and_objects_of_users(
    api: Api, cluster: KubeCluster
) -> None:
    await outcomes(steps.apply(api, LEAN))
    mine = {"metadata": {"name": "mine", "labels": {objects.PART_OF: objects.PART_OF_VALUE}}}
    await cluster.request("POST", "/api/v1/namespaces/koordinator-system/configmaps", mine)

    less = of(
        crds={"managed": False}, priorityClasses={"create": False}, installation={"createNamespace": False}
    )
    found = await outcomes(steps.apply(api, less, prune=True))

    assert only(found, ApplyOutcome.DELETED) == only(found, ApplyOutcome.LEFT_OVER) == []


async def test_what_a_user_changed_is_not_overwritten_unless_asked(api: Api, cluster: KubeCluster) -> None:
    await outcomes(steps.apply(api, LEAN))
    path = "/apis/apps/v1/namespaces/koordinator-system/deployments/koord-manager"
    await cluster.request("PATCH", path, {"spec": {"replicas": 5}}, {"fieldManager": "kubectl-edit"})
    config_map = "/api/v1/namespaces/koordinator-system/configmaps/slo-controller-config"
    await cluster.request("PATCH", config_map, {"data": {"colocation-config": '{"enable":false}'}})

    found = await outcomes(steps.apply(api, LEAN))

    step = found["Deployment koordinator-system/koord-manager"]
    assert step.outcome is ApplyOutcome.FAILED
    assert ".spec.replicas" in step.why and "--force-conflicts" in step.why
    assert found["ConfigMap koordinator-system/slo-controller-config"].outcome is ApplyOutcome.KEPT
    assert "DaemonSet koordinator-system/koordlet" not in found, "nothing after a part that failed"
    assert (await cluster.request("GET", path))["spec"]["replicas"] == 5

    forced = await outcomes(steps.apply(api, LEAN, force=True))
    assert only(forced, ApplyOutcome.FAILED) == only(forced, ApplyOutcome.KEPT) == []
    assert (await cluster.request("GET", path))["spec"]["replicas"] == 2


async def test_the_webhooks_of_an_installation_by_other_means_are_taken_over(
    api: Api, cluster: KubeCluster
) -> None:
    await outcomes(steps.apply(api, LEAN))
    path = (
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/" + configuration.MUTATING_NAME
    )
    theirs = {"metadata": {"annotations": {configuration.TEMPLATE: "[]"}}}
    await cluster.request("PATCH", path, theirs, {"fieldManager": "koord-manager"})

    found = await outcomes(steps.apply(api, LEAN))

    assert only(found, ApplyOutcome.FAILED) == []
    annotations = (await cluster.request("GET", path))["metadata"]["annotations"]
    assert "mpod-create" in annotations[configuration.TEMPLATE]


@pytest.mark.parametrize("settings", [{}, {"deviceDaemon": {"enabled": True}}], ids=["default", "devices"])
async def test_what_kubectl_brought_is_taken_over_without_conflicts(
    api: Api, cluster: KubeCluster, settings: dict[str, Any]
) -> None:
    """kubectl owns what it created with all that the API server filled in: what server-side apply owns as a whole
    (a `fieldRef`, a list without keys) has to be the same with these defaults."""
    chosen = of(**settings)
    for body in objects.objects(chosen):
        metadata = body["metadata"]
        path = steps.resource_of_body(body).path(metadata.get("namespace", ""))
        with contextlib.suppress(errors.AlreadyExists):  # our API server makes namespaces by itself
            await cluster.request("POST", path, body, {"fieldManager": "kubectl-client-side-apply"})

    found = await outcomes(steps.apply(api, chosen))

    assert {step.name: step.why for step in found.values() if step.outcome is ApplyOutcome.FAILED} == {}
    assert only(found, ApplyOutcome.KEPT) == []


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (errors.NotFound('namespaces "koordinator-system" not found'), "installation.createNamespace"),
        (errors.Forbidden("no"), "rights of cluster-admin"),
        (errors.Invalid("spec: no"), "spec: no"),
    ],
)
async def test_a_refusal_ends_the_installation_and_says_what_to_do(
    api: Api, monkeypatch: pytest.MonkeyPatch, refusal: errors.ApiError, words: str
) -> None:
    apply = Api.apply

    async def refuse(self: Api, resource: Resource, body: dict[str, Any], *, force: bool) -> dict[str, Any]:
        if resource.kind == "ConfigMap":
            raise refusal
        return await apply(self, resource, body, force=force)

    monkeypatch.setattr(Api, "apply", refuse)

    found = await outcomes(steps.apply(api, of(installation={"createNamespace": False})))

    [failed] = only(found, ApplyOutcome.FAILED)
    assert failed == list(found)[-1] == "ConfigMap koordinator-system/slo-controller-config"
    assert words in found[failed].why


@pytest.mark.parametrize("refusal", [errors.ConnectionFailed("refused"), errors.Unauthorized("who?")])
async def test_an_api_that_does_not_answer_ends_it_at_once(
    api: Api, monkeypatch: pytest.MonkeyPatch, refusal: errors.ApiError
) -> None:
    calls: list[str] = []

    async def fail(self: Api, resource: Resource, namespace: str, name: str) -> None:
        calls.append(name)
        raise refusal

    monkeypatch.setattr(Api, "get", fail)

    with pytest.raises(errors.ApiError):
        await outcomes(steps.apply(api, LEAN))
    assert len(calls) == 1


async def test_a_missing_kind_is_reported_with_what_to_do(api: Api) -> None:
    monitored = of(metrics={"serviceMonitor": {"enabled": True}})
    found = await outcomes(steps.apply(api, monitored))
    assert len(only(found, ApplyOutcome.FAILED)) == 3
    for name in only(found, ApplyOutcome.FAILED):
        assert name.startswith("ServiceMonitor") and "Prometheus operator" in found[name].why


async def bring_with_helm(cluster: KubeCluster, path: str, *, record: str, status: str) -> None:
    """Mark an object as that of a release, and write the record of the release."""
    marks = {steps.NAME: "prod", steps.NAMESPACE: "ops"}
    await cluster.request("PATCH", path, {"metadata": {"annotations": marks}})
    labels = {"owner": "helm", "name": "prod", "status": status}
    written = {"metadata": {"name": "sh.helm.release.v1.prod.v1", "labels": labels}}
    await cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": "ops"}})
    await cluster.request("POST", f"/api/v1/namespaces/ops/{record}", written)


@pytest.mark.parametrize("record", ["secrets", "configmaps"])
async def test_what_helm_manages_is_left_to_helm(api: Api, cluster: KubeCluster, record: str) -> None:
    await outcomes(steps.apply(api, LEAN))
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/koordlet"
    await bring_with_helm(cluster, path, record=record, status="deployed")

    applied = await outcomes(steps.apply(api, LEAN))
    would = await outcomes(steps.remove(api, dry_run=True))
    removed = await outcomes(steps.remove(api))

    for found in (applied, would, removed):
        assert only(found, ApplyOutcome.FAILED) == ["ClusterRole koordlet"]
        assert "Helm release prod" in found["ClusterRole koordlet"].why
    assert (await cluster.request("GET", path))["metadata"]["name"] == "koordlet"


async def test_what_a_release_left_behind_is_nobodys(api: Api, cluster: KubeCluster) -> None:
    await outcomes(steps.apply(api, LEAN))
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/koordlet"
    await bring_with_helm(cluster, path, record="secrets", status="uninstalled")

    assert not only(await outcomes(steps.apply(api, LEAN)), ApplyOutcome.FAILED)
    removed = await outcomes(steps.remove(api))
    assert removed["ClusterRole koordlet"].outcome is ApplyOutcome.DELETED


async def test_a_crd_that_is_never_served_ends_the_installation(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "_is_established", lambda crd: False)

    found = [step async for step in steps.apply(api, Values(), establish_s_max=0.1)]

    assert found[-1].outcome is ApplyOutcome.FAILED and "status.conditions" in found[-1].why
    assert {step.name.partition(" ")[0] for step in found} == {"CustomResourceDefinition"}


async def test_removing_takes_away_what_was_brought_and_keeps_what_users_need(
    api: Api, cluster: KubeCluster
) -> None:
    await outcomes(steps.apply(api, Values()))
    secret = {"metadata": {"name": "koordinator-webhook-certs"}}
    await cluster.request("POST", "/api/v1/namespaces/koordinator-system/secrets", secret)

    would = await outcomes(steps.remove(api, dry_run=True))
    assert await api.get(resource_of("Secret", ""), "koordinator-system", "koordinator-webhook-certs")
    removed = await outcomes(steps.remove(api))

    assert would == removed
    kept = {name.partition(" ")[0] for name in only(removed, ApplyOutcome.KEPT)}
    assert kept == set(steps.LASTING_KINDS)
    assert "Secret koordinator-system/koordinator-webhook-certs" in only(removed, ApplyOutcome.DELETED)
    first = next(name for name, step in removed.items() if step.outcome is ApplyOutcome.DELETED)
    assert first.startswith(("MutatingWebhook", "ValidatingWebhook")), "nobody is called who is gone"
    assert {objects.key(body) for body in objects.objects(Values())} <= removed.keys()
    assert only(await outcomes(steps.remove(api)), ApplyOutcome.DELETED) == []


async def test_removing_everything_leaves_nothing(api: Api) -> None:
    without_monitors = {**values.msgspec.to_builtins(EVERYTHING)}
    without_monitors["metrics"]["serviceMonitor"]["enabled"] = False
    await outcomes(steps.apply(api, values.read([("test", without_monitors)])))

    removed = await outcomes(steps.remove(api, everything=True))

    assert only(removed, ApplyOutcome.DELETED) == list(removed)
    assert list(removed)[-1] == "Namespace koordinator-system"
    again = await outcomes(steps.remove(api, everything=True))
    assert set(again) <= {"Namespace koordinator-system"}, "whose content is being deleted"


class AskedApi(Api):
    """Remembers what was listed and deleted, in that order."""

    def __init__(self, cluster: KubeCluster) -> None:
        super().__init__(cluster.transport)
        self.calls: list[tuple[str, str]] = []

    async def labelled(self, resource: Resource, selector: str) -> list[dict[str, Any]]:
        self.calls.append(("list", f"{resource.plural}.{resource.group}"))
        return await super().labelled(resource, selector)

    async def delete(self, resource: Resource, namespace: str, name: str) -> bool:
        self.calls.append(("delete", name))
        return await super().delete(resource, namespace, name)


async def test_the_storage_of_a_kind_is_open_before_its_definition_is_deleted(cluster: KubeCluster) -> None:
    api = AskedApi(cluster)
    await outcomes(steps.apply(api, values.read([("test", {"crds": {"managed": True}})])))
    api.calls.clear()

    removed = await outcomes(steps.remove(api, everything=True))

    crds = [name.partition(" ")[2] for name in removed if name.startswith("CustomResourceDefinition ")]
    assert len(crds) == 14
    for name in crds:
        assert api.calls.index(("list", name)) < api.calls.index(("delete", name))
