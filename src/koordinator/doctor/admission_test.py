"""Are the pod webhooks really asked? Pods that are created for trial only (`dryRun=All`) tell.

Two pods: one that must pass and come back changed, one that must be refused. Nothing is stored, and webhooks
that declare side effects are not called by the API server for such requests; ours declare none.
"""

import enum
import re
from typing import Any

import msgspec

from koordinator.api import labels, resources
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster

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


async def run(cluster: Cluster, namespace: str) -> AdmissionTest:
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
