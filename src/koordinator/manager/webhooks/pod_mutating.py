"""`/mutate-pod` and `/mutate-reservation`: what happens to a pod or Reservation at creation (behaviour/manager 14.1 and
16, gate ReservationMutatingWebhook).

Reservations get colocation profiles as pods do, with these differences: only the profile's `selector` counts, on the
Reservation's labels; scheduler and priority go into the pod template; resources stay as they are.
"""

import functools
import random
from collections.abc import Iterable
from typing import Any

import msgspec

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.quantity import QuantityError
from koordinator.api.reservation import Reservation
from koordinator.manager.parts import ManagerContext
from koordinator.manager.profiles import colocation_profile, extended_resources, profile_matching
from koordinator.manager.profiles.colocation_profile import Draw, FindPriorityClass, ProfileError
from koordinator.manager.profiles.profile_matching import CompiledProfile
from koordinator.manager.webhooks import pod_quotas, pod_rules
from koordinator.manager.webhooks.pod_quotas import PodQuotas
from koordinator.manager.webhooks.profile_cache import ProfileCache
from koordinator.manager.webhooks.review import (
    ALLOWED,
    MUTATE,
    AdmissionRequest,
    AdmissionVerdict,
    Steps,
    denied,
)

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
                pod = pod_quotas.inject_nodes(pod, self._quotas.nodes_of(own, namespace))
                began_s = durations.done(operation, step, began_s)
            step = DEVICES
            if self._normalizes_gpus:
                if self._checks_gpus and (wrong := pod_rules.gpu_percents(view)):
                    durations.done(operation, step, began_s, allowed=False)
                    return denied(wrong[0].message)
                pod = pod_quotas.normalize_gpus(pod)
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


def mutate_reservation(
    reservation: dict[str, Any],
    matching: Iterable[CompiledProfile],
    *,
    priority_class: FindPriorityClass,
    draw: Draw,
) -> dict[str, Any]:
    """Return the Reservation as the profiles that it matches want it, in their order; the input is kept.

    Raises: ProfileError.
    """
    for profile in matching:
        if colocation_profile.is_drawn(profile, draw):
            reservation = _apply(reservation, profile, priority_class)
    return reservation


def _apply(
    reservation: dict[str, Any], profile: CompiledProfile, priority_class: FindPriorityClass
) -> dict[str, Any]:
    """Template first, so that the profile's patch has the last word."""
    spec = reservation.get("spec") or {}
    template = spec.get("template")
    if template:
        about_pod = colocation_profile.without_patch(profile)
        pod = {"metadata": {}, "spec": template.get("spec") or {}}
        pod_spec = colocation_profile.apply_profile(pod, about_pod, priority_class)["spec"]
        reservation = {**reservation, "spec": {**spec, "template": {**template, "spec": pod_spec}}}
    return colocation_profile.apply_profile(reservation, profile, None, profile_matching.RESERVATION)


class ReservationMutatingHandler:
    """Applies profiles to new Reservations; everything it reads is cached."""

    def __init__(self, shared: ManagerContext, profiles: ProfileCache) -> None:
        self._profiles = profiles
        self._draw = percent_draw(shared.rng)
        self._durations = Steps(shared.metrics, MUTATE, "reservation")

    async def __call__(self, request: AdmissionRequest) -> AdmissionVerdict:
        """Let everything but the creation of a Reservation pass untouched."""
        if request.resource.resource != "reservations" or request.sub_resource:
            return ALLOWED
        if request.operation != "CREATE" or request.object is None:
            return ALLOWED
        began_s = self._durations.start()
        refusal: AdmissionVerdict | None = None
        try:
            view = from_builtins(request.object, Reservation)
            matching = await self._profiles.of_reservation(view.metadata.labels)
            mutated = mutate_reservation(
                request.object,
                matching.profiles,
                priority_class=self._profiles.priority_class,
                draw=self._draw,
            )
        except msgspec.ValidationError as error:
            refusal = denied(f"{called(request)}: {error}")
        except ProfileError as error:
            refusal = denied(f"{called(request)}: {error}", 500)
        allowed = refusal is None
        self._durations.done(request.operation, PROFILES, began_s, allowed=allowed)
        return refusal or AdmissionVerdict(obj=mutated, warnings=matching.warnings)
