"""What components must be allowed to do, and asking the API server whether they are (spec 01 §14.5)."""

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster
from koordinator.doctor.installation import Name, Workload

_PATH = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
REQUESTS_AT_ONCE = 8


class Need(msgspec.Struct, frozen=True):
    """A verb on a resource (`plural` or `plural/subresource`) that a component cannot do without.

    `namespaced` needs are asked in the components' namespace, the others in the whole cluster. `loss` tells
    what does not work without it.
    """

    verb: str
    group: str
    resource: str
    loss: str
    namespaced: bool = False

    @property
    def words(self) -> str:
        """As `kubectl auth can-i` takes it."""
        plural, _, subresource = self.resource.partition("/")
        name = f"{plural}.{self.group}" if self.group else plural
        return f"{self.verb} {name}" + (f" --subresource={subresource}" if subresource else "")


class AccessAnswer(msgspec.Struct, frozen=True):
    """Whether a component's account may do what it needs; `gap` tells why nobody knows."""

    component: Name
    account: str
    need: Need
    allowed: bool = False
    gap: str = ""


_SLO, _CONFIG, _SIGS = "slo.koordinator.sh", "config.koordinator.sh", "scheduling.sigs.k8s.io"
_LEASE = Need("update", "coordination.k8s.io", "leases", "no instance can lead", namespaced=True)

NEEDS: dict[Name, tuple[Need, ...]] = {
    Name.MANAGER: (
        _LEASE,
        Need("watch", "", "nodes", "nothing is calculated"),
        Need("watch", "", "pods", "nothing is calculated"),
        Need("watch", "", "configmaps", "the configuration is not read", namespaced=True),
        Need("patch", "", "nodes/status", "nodes never offer Batch resources"),
        Need("patch", "", "nodes", "CPU normalization and amplification are not written"),
        Need("create", _SLO, "nodemetrics", "node agents are not asked to report"),
        Need("delete", _SLO, "nodemetrics", "reports of removed nodes stay"),
        Need("create", _SLO, "nodeslos", "node agents get no policy"),
        Need("patch", _SLO, "nodeslos", "node agents keep an old policy"),
        Need("watch", _CONFIG, "clustercolocationprofiles", "profiles are not applied"),
        Need("watch", "scheduling.k8s.io", "priorityclasses", "profiles with a priority class refuse pods"),
        Need("watch", _SIGS, "elasticquotas", "quotas are not checked"),
        Need(
            "patch",
            "admissionregistration.k8s.io",
            "mutatingwebhookconfigurations",
            "webhooks are called with an old certificate authority",
        ),
        Need(
            "patch",
            "admissionregistration.k8s.io",
            "validatingwebhookconfigurations",
            "webhooks are called with an old certificate authority",
        ),
        Need("create", "", "secrets", "the certificate of the webhooks cannot be kept", namespaced=True),
    ),
    Name.SCHEDULER: (
        _LEASE,
        Need("watch", "", "nodes", "nothing is scheduled"),
        Need("watch", "", "pods", "nothing is scheduled"),
        Need("create", "", "pods/binding", "nothing is scheduled"),
        Need("patch", "", "pods/status", "pods do not say why they wait"),
        Need("watch", _SLO, "nodemetrics", "placement ignores usage"),
        Need("watch", _SIGS, "elasticquotas", "quotas are ignored"),
        Need("watch", "scheduling.koordinator.sh", "devices", "devices are ignored"),
    ),
    Name.KOORDLET: (
        Need("get", "", "nodes", "the agent does not start"),
        Need("watch", _SLO, "nodeslos", "the node keeps its last policy"),
        Need("watch", _SLO, "nodemetrics", "the agent does not know how to report"),
        Need("patch", _SLO, "nodemetrics/status", "reports do not arrive, so nodes lend nothing"),
        Need("create", "", "pods/eviction", "batch pods are not evicted when services need the node"),
    ),
}


async def ask(cluster: Cluster, namespace: str, workloads: Iterable[Workload]) -> list[AccessAnswer]:
    """An answer for every need of the components that have a workload; after the first 403 no more are asked."""
    slots = asyncio.Semaphore(REQUESTS_AT_ONCE)
    questions = [
        (each.component, f"system:serviceaccount:{namespace}:{each.service_account}", need)
        for each in workloads
        for need in NEEDS.get(each.component, ())
    ]

    async def one(component: Name, account: str, need: Need) -> AccessAnswer:
        async with slots:
            try:
                status = await _review(cluster, namespace, account, need)
            except errors.ApiError as error:
                return AccessAnswer(component, account, need, gap=str(error))
        return AccessAnswer(component, account, need, allowed=bool(status.get("allowed")))

    if not questions:
        return []
    first = await one(*questions[0])
    if first.gap:
        return [first]
    return [first, *await asyncio.gather(*(one(*question) for question in questions[1:]))]


async def _review(cluster: Cluster, namespace: str, account: str, need: Need) -> dict[str, object]:
    plural, _, subresource = need.resource.partition("/")
    attributes = {"verb": need.verb, "group": need.group, "resource": plural, "subresource": subresource}
    if need.namespaced:
        attributes["namespace"] = namespace
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": account, "groups": _groups(namespace), "resourceAttributes": attributes},
    }
    answer = await cluster.request("POST", _PATH, body)
    status = answer.get("status")
    return status if isinstance(status, dict) else {}


def _groups(namespace: str) -> Sequence[str]:
    """What the API server adds to a service account."""
    return ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
