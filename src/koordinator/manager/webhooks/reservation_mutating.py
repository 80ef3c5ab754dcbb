"""`/mutate-reservation`: colocation profiles on Reservations (spec 02 §16, gate ReservationMutatingWebhook).

As for pods, with these differences: only the profile's `selector` counts, on the Reservation's labels;
scheduler and priority go into the pod template; resources stay as they are.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api.config_group import ClusterColocationProfile
from koordinator.api.decode import from_builtins
from koordinator.api.reservation import Reservation
from koordinator.api.scheduling import PriorityClass
from koordinator.cluster.informer import InformerFactory
from koordinator.manager import colocation_profile
from koordinator.manager.colocation_profile import Draw, ProfileError
from koordinator.manager.webhooks.review import ALLOWED, AdmissionRequest, Verdict, denied

PATH = "/mutate-reservation"


def mutate(
    reservation: dict[str, Any],
    profiles: Sequence[ClusterColocationProfile],
    *,
    priority_classes: Mapping[str, PriorityClass],
    draw: Draw,
) -> dict[str, Any]:
    """The Reservation as the matching profiles want it, in the order of their names; the input is kept.

    Raises: ProfileError.
    """
    own = (reservation.get("metadata") or {}).get("labels") or {}
    for profile in sorted(profiles, key=lambda p: p.metadata.name):
        # Without the labels of a namespace, a profile's namespaceSelector does not count.
        if colocation_profile.profile_matches(profile, own, None) and colocation_profile.is_drawn(
            profile, draw
        ):
            reservation = _apply(reservation, profile, priority_classes)
    return reservation


def _apply(
    reservation: dict[str, Any],
    profile: ClusterColocationProfile,
    priority_classes: Mapping[str, PriorityClass],
) -> dict[str, Any]:
    """Template first, so that the profile's patch has the last word."""
    spec = reservation.get("spec") or {}
    template = spec.get("template")
    if template:
        about_pod = msgspec.structs.replace(profile, spec=msgspec.structs.replace(profile.spec, patch=None))
        pod = {"metadata": {}, "spec": template.get("spec") or {}}
        pod_spec = colocation_profile.apply_profile(pod, about_pod, priority_classes)["spec"]
        reservation = {**reservation, "spec": {**spec, "template": {**template, "spec": pod_spec}}}
    return colocation_profile.apply_profile(reservation, profile, None)


class ReservationMutatingHandler:
    """Applies profiles to new Reservations; everything it reads is cached."""

    def __init__(self, factory: InformerFactory, rng: random.Random) -> None:
        self._profiles = factory.informer(ClusterColocationProfile)
        self._priority_classes = factory.informer(PriorityClass)
        self._rng = rng

    async def __call__(self, request: AdmissionRequest) -> Verdict:
        """What is no creation of a Reservation passes untouched."""
        if request.resource.resource != "reservations" or request.sub_resource:
            return ALLOWED
        if request.operation != "CREATE" or request.object is None:
            return ALLOWED
        try:
            from_builtins(
                request.object, Reservation
            )  # what is none ends here, with the member that is wrong
            mutated = mutate(
                request.object,
                list(self._profiles.objects.values()),
                priority_classes={pc.metadata.name: pc for pc in self._priority_classes.objects.values()},
                draw=lambda: self._rng.randrange(100),
            )
        except msgspec.ValidationError as error:
            return denied(f"Reservation {request.name}: {error}")
        except ProfileError as error:
            return denied(str(error), 500)
        return Verdict(obj=mutated)
