"""Tell which changes of fixed labels are the profile controller's own.

Source: behaviour/manager 15, gate ColocationProfileController.

QoS class and priorities of a pod are fixed, except that a profile for pods that wait already may set them: what
it says, on a pod that it is for, before the pod has a node. Without this the two features would refuse each other.
"""

from koordinator.api import labels
from koordinator.api.config_group import ClusterColocationProfile
from koordinator.api.core import Namespace, Pod
from koordinator.manager.parts import ManagerContext
from koordinator.manager.profiles import profile_matching, profile_pending
from koordinator.manager.profiles.colocation_profile import ProfileError

FIXED = (labels.QOS_CLASS, labels.PRIORITY, labels.PRIORITY_CLASS)


class ProfileChanges:
    """Knows the profiles that the controller applies."""

    def __init__(self, shared: ManagerContext) -> None:
        self._by_default = shared.options.profile_controller.reconcile_by_default
        self._profiles = shared.factory.informer(ClusterColocationProfile)
        self._namespaces = shared.factory.informer(Namespace)

    def explain(self, old: Pod, new: Pod) -> bool:
        """Return whether one profile makes of `old` what `new` says in its fixed labels."""
        return (
            profile_pending.waits(old)
            and old.spec.priority == new.spec.priority
            and any(self._makes(profile, old, new) for profile in self._profiles.objects.values())
        )

    def _makes(self, profile: ClusterColocationProfile, old: Pod, new: Pod) -> bool:
        if not profile_pending.is_managed(profile, by_default=self._by_default):
            return False
        compiled = profile_matching.compile_profile(profile)
        namespace = self._namespaces.get(new.metadata.namespace)
        found = namespace.metadata.labels if namespace is not None else None
        if compiled.broken is not None or not profile_pending.matches(compiled, old.metadata.labels, found):
            return False
        before = {"metadata": {"labels": old.metadata.labels, "annotations": old.metadata.annotations}}
        try:
            wanted = profile_pending.applied(before, compiled)["metadata"].get("labels") or {}
        except ProfileError:
            return False
        return all(wanted.get(key) == new.metadata.labels.get(key) for key in FIXED)
