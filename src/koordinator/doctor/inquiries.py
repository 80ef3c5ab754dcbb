"""Ask what only a running cluster can answer: may components do what they need to (what an installation grants), are
webhook servers trusted, and are the pod webhooks really asked?

Only webhooks with a URL can be tried from outside of the cluster; services are reached by the API server only. Pods
are created for trial only (`dryRun=All`), one that must pass and come back changed, one that must be refused: nothing
is stored, and webhooks that declare side effects are not called by the API server for such requests; ours declare none.
"""

import asyncio
import contextlib
import enum
import re
import ssl
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from koordinator.api import labels, resources
from koordinator.cluster import errors
from koordinator.cluster.delegated_auth import ACCESS_REVIEWS, AUTHENTICATED
from koordinator.cluster.protocol import Cluster
from koordinator.doctor.installation import ComponentName, ComponentWorkload
from koordinator.install import rbac

REQUESTS_AT_ONCE = 8


class RequiredAccess(msgspec.Struct, frozen=True, kw_only=True):
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


def needs(component: str, namespace: str) -> list[RequiredAccess]:
    """Return all that the roles of an installation grant a component; none for a component without roles of ours."""
    return [
        RequiredAccess(
            verb=verb,
            group=rule.group,
            resource=resource,
            why=rule.why,
            namespace=namespace if rule.in_namespace else "",
            name=name,
        )
        for rule in rbac.rules().get(component, ())
        for resource in rule.resources
        for verb in rule.verbs
        for name in rule.names or ("",)
    ]


class AccessAnswer(msgspec.Struct, frozen=True):
    """The answer whether a component's account may do what it needs; `gap` tells why nobody knows."""

    component: ComponentName
    account: str
    need: RequiredAccess
    allowed: bool = False
    gap: str = ""


async def review_access(
    cluster: Cluster, namespace: str, workloads: Iterable[ComponentWorkload]
) -> list[AccessAnswer]:
    """Return an answer for every need of the components that have a workload; after the first 403 no more are asked."""
    slots = asyncio.Semaphore(REQUESTS_AT_ONCE)
    questions = [
        (each.component, f"system:serviceaccount:{namespace}:{each.service_account}", need)
        for each in workloads
        for need in needs(each.component, namespace)
    ]

    async def one(component: ComponentName, account: str, need: RequiredAccess) -> AccessAnswer:
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


async def _review(cluster: Cluster, account: str, namespace: str, need: RequiredAccess) -> dict[str, object]:
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
    # As the API server adds them to a service account.
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED]
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": account, "groups": groups, "resourceAttributes": given},
    }
    answer = await cluster.request("POST", ACCESS_REVIEWS, body)
    status = answer.get("status")
    return status if isinstance(status, dict) else {}


POD_NAME = "koordinator-doctor-trial"
_UNREACHABLE = re.compile(r'failed calling webhook "([^"]+)"')
_DENIED = re.compile(r'admission webhook "([^"]+)" denied the request')


class TrialOutcome(enum.StrEnum):
    """The fate of a trial pod."""

    CREATED = "created"
    REFUSED = "refused"
    """By a webhook (`webhook` names it) or by the API server itself."""
    UNREACHABLE = "unreachable"
    """A webhook could not be called, and its failure policy refuses the pod; without a name of it, there was no
    answer at all."""
    NOT_ALLOWED = "not allowed"
    """We may not create pods there, so the trial tells nothing."""


class AdmissionTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One trial: what happened, the webhook that decided, the API server's words, the pod as it came back."""

    outcome: TrialOutcome
    webhook: str = ""
    message: str = ""
    pod: dict[str, Any] = {}


class AdmissionTest(msgspec.Struct, frozen=True):
    """Both trials in a namespace that the webhooks watch: of a good batch pod, and of one against the rules."""

    namespace: str
    good: AdmissionTrial
    bad: AdmissionTrial


async def try_admission(cluster: Cluster, namespace: str) -> AdmissionTest:
    """Try both pods; answers of any kind are results."""
    return AdmissionTest(
        namespace,
        await _try(cluster, namespace, _pod("BE", "koord-batch")),
        await _try(cluster, namespace, _pod("LS", "koord-prod")),
    )


def _pod(qos_class: str, priority_class: str) -> dict[str, Any]:
    """Return a pod that asks for batch resources, which only best-effort pods may."""
    amounts = {resources.BATCH_CPU: "100", resources.BATCH_MEMORY: "64Mi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD_NAME, "labels": {labels.QOS_CLASS: qos_class}},
        "spec": {
            "priorityClassName": priority_class,
            "containers": [
                {"name": "main", "image": "none", "resources": {"requests": amounts, "limits": amounts}}
            ],
        },
    }


async def _try(cluster: Cluster, namespace: str, pod: dict[str, Any]) -> AdmissionTrial:
    path = f"/api/v1/namespaces/{namespace}/pods"
    try:
        answer = await cluster.request("POST", path, pod, {"dryRun": "All"})
    except errors.AlreadyExists as error:
        return AdmissionTrial(outcome=TrialOutcome.NOT_ALLOWED, message=str(error))
    except errors.ApiError as error:
        return _refused(error)
    return AdmissionTrial(outcome=TrialOutcome.CREATED, pod=answer)


def _refused(error: errors.ApiError) -> AdmissionTrial:
    if isinstance(error, errors.ConnectionFailed | errors.Timeout):
        return AdmissionTrial(
            outcome=TrialOutcome.UNREACHABLE, message=str(error)
        )  # a webhook hangs, most likely
    # There is no other way: the API server tells which webhook decided in its text only.
    message = str(error)
    if found := _UNREACHABLE.search(message):
        return AdmissionTrial(outcome=TrialOutcome.UNREACHABLE, webhook=found[1], message=message)
    if found := _DENIED.search(message):
        return AdmissionTrial(outcome=TrialOutcome.REFUSED, webhook=found[1], message=message)
    if isinstance(error, errors.Forbidden | errors.Unauthorized | errors.NotFound):
        return AdmissionTrial(outcome=TrialOutcome.NOT_ALLOWED, message=message)
    return AdmissionTrial(outcome=TrialOutcome.REFUSED, message=message)


TIMEOUT_S = 5.0


class Handshake(msgspec.Struct, frozen=True, kw_only=True):
    """The result of connecting. `reached` is False when nothing answered; `problem` is then why, else why the
    certificate is not trusted (empty when it is)."""

    reached: bool
    problem: str = ""


async def shake_all(targets: Iterable[tuple[str, bytes]]) -> dict[str, Handshake]:
    """Return a handshake for each (URL, PEM certificates to trust), by `https://host:port`."""
    chosen = {address(url): (url, ca) for url, ca in targets}
    done = await asyncio.gather(*(shake(url, ca) for url, ca in chosen.values()))
    return dict(zip(chosen, done, strict=True))


def address(url: str) -> str:
    """`https://host:port` of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


async def shake(url: str, ca: bytes) -> Handshake:
    """Connect, check the certificate against `ca`, hang up."""
    parts = urlsplit(url)
    try:
        context = ssl.create_default_context(cadata=ca.decode("ascii") if ca else None)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as Go, which API servers are written in
        port = parts.port or 443
    except (ssl.SSLError, ValueError) as error:
        return Handshake(reached=False, problem=f"not tried: {error}")
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, writer = await asyncio.open_connection(
                parts.hostname, port, ssl=context, server_hostname=parts.hostname
            )
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    except ssl.SSLCertVerificationError as error:
        return Handshake(reached=True, problem=error.verify_message or str(error))
    except ssl.SSLError as error:
        return Handshake(reached=True, problem=str(error))
    except TimeoutError:
        return Handshake(reached=False, problem=f"no answer within {TIMEOUT_S:g} s")
    except OSError as error:
        return Handshake(reached=False, problem=error.strerror or str(error))
    return Handshake(reached=True)
