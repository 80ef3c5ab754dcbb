"""List what components must be allowed to do (what an installation grants them), and ask the API server."""

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster
from koordinator.doctor.installation import ComponentName, ComponentWorkload
from koordinator.install import rbac

_PATH = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
REQUESTS_AT_ONCE = 8


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """A verb on a resource (`plural` or `plural/subresource`), and what a component needs it for.

    `namespace` is empty for what it needs in the whole cluster, `name` for all objects of the kind.
    """

    verb: str
    group: str
    resource: str
    why: str
    namespace: str = ""
    name: str = ""

    @property
    def words(self) -> str:
        """Return the question as `kubectl auth can-i` takes it."""
        plural, _, subresource = self.resource.partition("/")
        kind = f"{plural}.{self.group}" if self.group else plural
        named = f"{kind}/{self.name}" if self.name else kind
        return (
            f"{self.verb} {named}"
            + (f" --subresource={subresource}" if subresource else "")
            + (f" -n {self.namespace}" if self.namespace else "")
        )


def needs(component: str, namespace: str) -> list[Need]:
    """Return all that the roles of an installation grant a component; none for a component without roles of ours."""
    return [
        Need(
            verb=verb,
            group=rule.group,
            resource=resource,
            why=rule.why,
            namespace=namespace if rule.in_namespace else "",
            name=name,
        )
        for rule in rbac.RULES.get(component, ())
        for resource in rule.resources
        for verb in rule.verbs
        for name in rule.names or ("",)
    ]


class AccessAnswer(msgspec.Struct, frozen=True):
    """The answer whether a component's account may do what it needs; `gap` tells why nobody knows."""

    component: ComponentName
    account: str
    need: Need
    allowed: bool = False
    gap: str = ""


async def ask(cluster: Cluster, namespace: str, workloads: Iterable[ComponentWorkload]) -> list[AccessAnswer]:
    """Return an answer for every need of the components that have a workload; after the first 403 no more are asked."""
    slots = asyncio.Semaphore(REQUESTS_AT_ONCE)
    questions = [
        (each.component, f"system:serviceaccount:{namespace}:{each.service_account}", need)
        for each in workloads
        for need in needs(each.component, namespace)
    ]

    async def one(component: ComponentName, account: str, need: Need) -> AccessAnswer:
        async with slots:
            try:
                status = await _review(cluster, account, namespace, need)
            except errors.ApiError as error:
                return AccessAnswer(component, account, need, gap=str(error))
        return AccessAnswer(component, account, need, allowed=bool(status.get("allowed")))

    if not questions:
        return []
    first = await one(*questions[0])
    if first.gap:
        return [first]
    return [first, *await asyncio.gather(*(one(*question) for question in questions[1:]))]


async def _review(cluster: Cluster, account: str, namespace: str, need: Need) -> dict[str, object]:
    plural, _, subresource = need.resource.partition("/")
    attributes = {
        "verb": need.verb,
        "group": need.group,
        "resource": plural,
        "subresource": subresource,
        "namespace": need.namespace,
        "name": need.name,
    }
    given = {key: value for key, value in attributes.items() if value}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": account, "groups": _groups(namespace), "resourceAttributes": given},
    }
    answer = await cluster.request("POST", _PATH, body)
    status = answer.get("status")
    return status if isinstance(status, dict) else {}


def _groups(namespace: str) -> Sequence[str]:
    """Return the groups that the API server adds to a service account."""
    return ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
