"""`/mutate-pod`: what happens to a pod at creation (spec 02 §14.1)."""

from koordinator.api.config_group import ClusterColocationProfile
from koordinator.api.core import Namespace
from koordinator.api.quantity import QuantityError
from koordinator.api.scheduling import PriorityClass
from koordinator.manager import colocation_profile, extended_resources
from koordinator.manager.parts import Shared
from koordinator.manager.webhooks.review import ALLOWED, AdmissionRequest, Verdict, denied

PATH = "/mutate-pod"


class PodMutatingHandler:
    """Applies colocation profiles and notes the extended resources; everything it reads is cached."""

    def __init__(self, shared: Shared) -> None:
        factory = shared.factory
        self._profiles = factory.informer(ClusterColocationProfile)
        self._namespaces = factory.informer(Namespace)
        self._priority_classes = factory.informer(PriorityClass)
        self._rng = shared.rng
        self._skip_resources = shared.gates.is_on("ColocationProfileSkipMutatingResources")

    async def __call__(self, request: AdmissionRequest) -> Verdict:
        """The pod as profiles want it; anything that is no pod creation passes untouched."""
        if request.resource.resource != "pods" or request.sub_resource or request.operation != "CREATE":
            return ALLOWED
        pod = request.object
        if pod is None:
            return denied("pod CREATE without an object")
        name = (pod.get("metadata") or {}).get("namespace") or request.namespace
        namespace = self._namespaces.get(name)
        try:
            outcome = colocation_profile.mutate(
                pod,
                list(self._profiles.objects.values()),
                namespace_labels=namespace.metadata.labels if namespace is not None else None,
                priority_classes={pc.metadata.name: pc for pc in self._priority_classes.objects.values()},
                draw=lambda: self._rng.randrange(100),
                skip_resources=self._skip_resources,
            )
            return Verdict(obj=extended_resources.annotate_pod(outcome.pod))
        except (colocation_profile.ProfileError, QuantityError, ValueError) as error:
            return denied(str(error), 500)
