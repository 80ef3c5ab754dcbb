"""Find the claims that a pod has, and why they cannot be used. Words as upstream's."""

from collections.abc import Callable, Iterator

import msgspec

from koordinator.api.core import Pod
from koordinator.api.dra import RESERVATIONS_MAX, ResourceClaim

ClaimKey = tuple[str, str]
"""(namespace, name)"""

Find = Callable[[ClaimKey], ResourceClaim | None]


class ClaimError(Exception):
    """The claims of a pod cannot be told or used yet."""


class ClaimUse(msgspec.Struct, frozen=True):
    """A claim under the pod's own name for it; a generated one has to belong to the pod."""

    name: str
    key: ClaimKey
    is_generated: bool


def claim_names(pod: Pod) -> tuple[tuple[str, str | None], ...]:
    """Return what says which claims a pod uses, in the order of its spec: all that may change while it waits."""
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    return tuple(
        (each.name, each.resource_claim_name or made.get(each.name)) for each in pod.spec.resource_claims
    )


def uses_of(pod: Pod) -> Iterator[ClaimUse]:
    """The pod's claims. Raises: ClaimError when a claim has not been made yet."""
    namespace, name = pod.metadata.namespace, pod.metadata.name
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    for each in pod.spec.resource_claims:
        if each.resource_claim_name is not None:
            yield ClaimUse(each.name, (namespace, each.resource_claim_name), is_generated=False)
        elif each.resource_claim_template_name is None:
            reason = f'pod "{namespace}/{name}", spec.resourceClaim "{each.name}"'
            raise ClaimError(f"{reason}: none of the supported fields are set")
        elif each.name not in made:
            raise ClaimError(f'pod "{namespace}/{name}": ResourceClaim not created yet')
        elif (claim_name := made[each.name]) is not None:
            yield ClaimUse(each.name, (namespace, claim_name), is_generated=True)


def claims_of(pod: Pod, find: Find) -> list[tuple[ClaimUse, ResourceClaim]]:
    """The pod's claims as they are. Raises: ClaimError."""
    found = []
    for use in uses_of(pod):
        claim = find(use.key)
        if claim is None:
            raise ClaimError(f'could not find ResourceClaim "{use.key[0]}/{use.key[1]}"')
        if claim.metadata.deletion_timestamp is not None:
            raise ClaimError(f'resourceclaim "{use.key[1]}" is being deleted')
        if use.is_generated and not belongs_to(claim, pod):
            raise ClaimError(
                f"ResourceClaim {claim.key} was not created for pod {pod.key} (pod is not owner)"
            )
        found.append((use, claim))
    return found


def objection(pod: Pod, find: Find) -> str:
    """Return why the pod's claims cannot be used; "" when they can."""
    try:
        claims_of(pod, find)
    except ClaimError as error:
        return str(error)
    return ""


def belongs_to(claim: ResourceClaim, pod: Pod) -> bool:
    """Return whether the claim was made for the pod."""
    return any(
        owner.controller and owner.uid == pod.metadata.uid for owner in claim.metadata.owner_references
    )


def is_reserved_for(claim: ResourceClaim, uid: str) -> bool:
    return any(consumer.uid == uid for consumer in claim.status.reserved_for)


def can_be_reserved(claim: ResourceClaim) -> bool:
    """Return whether one more pod may use the claim."""
    return len(claim.status.reserved_for) < RESERVATIONS_MAX
