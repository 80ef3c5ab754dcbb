"""`/mutate-reservation`: colocation profiles on Reservations (behaviour/manager 16, gate ReservationMutatingWebhook).

As for pods, with these differences: only the profile's `selector` counts, on the Reservation's labels;
scheduler and priority go into the pod template; resources stay as they are.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from koordinator.api.decode import from_builtins
from koordinator.api.reservation import Reservation
from koordinator.manager.parts import ManagerContext
from koordinator.manager.profiles import colocation_profile, pod_patch
from koordinator.manager.profiles.colocation_profile import Draw, FindPriorityClass, ProfileError
from koordinator.manager.profiles.profile_matching import CompiledProfile
from koordinator.manager.webhooks import pod_mutating, table
from koordinator.manager.webhooks.profile_cache import ProfileCache
from koordinator.manager.webhooks.review import ALLOWED, AdmissionRequest, AdmissionVerdict, denied
from koordinator.manager.webhooks.timing import MUTATE, Steps

PATH = table.MUTATE_RESERVATION


def mutate(
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
        source = profile.source
        unpatched = msgspec.structs.replace(source, spec=msgspec.structs.replace(source.spec, patch=None))
        about_pod = msgspec.structs.replace(profile, source=unpatched)
        pod = {"metadata": {}, "spec": template.get("spec") or {}}
        pod_spec = colocation_profile.apply_profile(pod, about_pod, priority_class)["spec"]
        reservation = {**reservation, "spec": {**spec, "template": {**template, "spec": pod_spec}}}
    return colocation_profile.apply_profile(reservation, profile, None, pod_patch.RESERVATION)


class ReservationMutatingHandler:
    """Applies profiles to new Reservations; everything it reads is cached."""

    def __init__(self, shared: ManagerContext, profiles: ProfileCache) -> None:
        self._profiles = profiles
        self._draw = pod_mutating.percent_draw(shared.rng)
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
            mutated = mutate(
                request.object,
                matching.profiles,
                priority_class=self._profiles.priority_class,
                draw=self._draw,
            )
        except msgspec.ValidationError as error:
            refusal = denied(f"{pod_mutating.called(request)}: {error}")
        except ProfileError as error:
            refusal = denied(f"{pod_mutating.called(request)}: {error}", 500)
        allowed = refusal is None
        self._durations.done(request.operation, pod_mutating.PROFILES, began_s, allowed=allowed)
        return refusal or AdmissionVerdict(obj=mutated, warnings=matching.warnings)
