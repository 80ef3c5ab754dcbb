"""`/mutate-pod`: what happens to a pod at creation (behaviour/manager 14.1)."""

import functools
import random

import msgspec

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.quantity import QuantityError
from koordinator.manager.parts import ManagerContext
from koordinator.manager.profiles import colocation_profile, extended_resources
from koordinator.manager.profiles.colocation_profile import ProfileError
from koordinator.manager.webhooks import pod_injecting, pod_rules, table
from koordinator.manager.webhooks.pod_quotas import PodQuotas
from koordinator.manager.webhooks.profile_cache import ProfileCache
from koordinator.manager.webhooks.review import ALLOWED, AdmissionRequest, AdmissionVerdict, denied
from koordinator.manager.webhooks.timing import MUTATE, Steps

PATH = table.MUTATE_POD

PROFILES, EXTENDED_RESOURCES = "ClusterColocationProfile", "ExtendedResourceSpec"
QUOTA_TREES, DEVICES = "MultiQuotaTree", "DeviceResourceSpec"
"""Steps, as the metric calls them."""


class PodMutatingHandler:
    """Profiles, the annotation of Batch amounts, nodes of the quota tree, GPUs: in this order, out of caches."""

    def __init__(
        self, shared: ManagerContext, profiles: ProfileCache, quotas: PodQuotas | None = None
    ) -> None:
        """`quotas`: None while feature gate MultiQuotaTree is off."""
        gates = shared.gates
        self._profiles = profiles
        self._quotas = quotas
        self._draw = percent_draw(shared.rng)
        self._skip_resources = gates.is_on("ColocationProfileSkipMutatingResources")
        self._annotates = not gates.is_on("DisableExtendedResourceSpec")
        self._normalizes_gpus = not gates.is_on("DisableDeviceResourceSpec")
        self._checks_gpus = gates.is_on("ValidatePodDeviceResource")
        self._durations = Steps(shared.metrics, MUTATE, "pod")

    async def __call__(self, request: AdmissionRequest) -> AdmissionVerdict:
        """Return the pod as it should be; anything that is no pod creation passes untouched."""
        if request.resource.resource != "pods" or request.sub_resource or request.operation != "CREATE":
            return ALLOWED
        if request.object is None:
            return denied("pod CREATE without an object")
        try:
            view = from_builtins(request.object, Pod)
        except msgspec.ValidationError as error:
            return denied(f"{called(request)}: {error}")
        return await self._mutate(request, view)

    async def _mutate(self, request: AdmissionRequest, view: Pod) -> AdmissionVerdict:
        pod = request.object
        assert pod is not None
        namespace = view.metadata.namespace or request.namespace
        durations, operation = self._durations, request.operation
        began_s, step = durations.start(), PROFILES
        try:
            matching = await self._profiles.of_pod(view.metadata.labels, namespace)
            outcome = colocation_profile.mutate(
                pod,
                matching.profiles,
                priority_class=self._profiles.priority_class,
                draw=self._draw,
                skip_resources=self._skip_resources,
            )
            pod = outcome.pod
            began_s, step = durations.done(operation, step, began_s), EXTENDED_RESOURCES
            if self._annotates:
                pod = extended_resources.annotate_pod(pod)
                began_s = durations.done(operation, step, began_s)
            step = QUOTA_TREES
            if self._quotas is not None:
                own = (pod.get("metadata") or {}).get("labels") or {}
                pod = pod_injecting.inject_nodes(pod, self._quotas.nodes_of(own, namespace))
                began_s = durations.done(operation, step, began_s)
            step = DEVICES
            if self._normalizes_gpus:
                if self._checks_gpus and (wrong := pod_rules.gpu_percents(view)):
                    durations.done(operation, step, began_s, allowed=False)
                    return denied(wrong[0].message)
                pod = pod_injecting.normalize_gpus(pod)
                durations.done(operation, step, began_s)
        except (ProfileError, QuantityError, ValueError) as error:  # ValidationError is a ValueError
            durations.done(operation, step, began_s, allowed=False)
            words = pod_rules.malformed_amount(view) if isinstance(error, QuantityError) else ""
            # A profile is not the sender's mistake; all else is.
            code = 500 if isinstance(error, ProfileError) else 400
            return denied(f"{called(request)}: {words or error}", code)
        return AdmissionVerdict(obj=pod, warnings=matching.warnings + outcome.warnings)


def called(request: AdmissionRequest) -> str:
    """Return what a refusal calls the object: pods of workloads have no name yet."""
    metadata = (request.object or {}).get("metadata")
    prefix = metadata.get("generateName") if isinstance(metadata, dict) else ""
    kind = "Pod" if request.resource.resource == "pods" else "Reservation"
    where = f"{request.namespace}/" if request.namespace else ""
    return f"{kind} {where}{request.name or f'{prefix}*' if prefix else request.name}"


def percent_draw(rng: random.Random) -> colocation_profile.Draw:
    """Draws whole numbers below 100."""
    return functools.partial(rng.randrange, 100)
