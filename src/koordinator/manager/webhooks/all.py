"""The admission handlers that are switched on, by URL path (spec 02 §12)."""

from collections.abc import Mapping

from koordinator.manager.parts import Shared
from koordinator.manager.webhooks import pod_mutating
from koordinator.manager.webhooks.review import Handler


def handlers(shared: Shared) -> Mapping[str, Handler]:
    """One handler per path; a path is left out when the feature gate of its webhook is off."""
    gates = shared.gates
    found: dict[str, Handler] = {}
    if not gates.is_on("WebhookFramework"):
        return found
    if gates.is_on("PodMutatingWebhook"):
        found[pod_mutating.PATH] = pod_mutating.PodMutatingHandler(shared)
    return found
