"""ClusterColocationProfiles, compiled when they change, and what they need to be matched and applied.

A user who creates a namespace and a pod in it with one command asks us about the pod before our cache has the
namespace: `RecentLookup` then asks the API.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from koordinator.api.core import Namespace
from koordinator.api.groups import ClusterColocationProfile, PriorityClass
from koordinator.api.meta import Object
from koordinator.cluster.errors import ApiError, NotFound
from koordinator.cluster.informer import Informer
from koordinator.cluster.protocol import Cluster
from koordinator.manager.parts import ManagerContext
from koordinator.manager.profiles import profile_matching
from koordinator.manager.profiles.profile_matching import CompiledProfile, Profiles

log = logging.getLogger(__name__)

REASON_UNUSABLE = "ProfileNotUsed"
REASON_BROKEN = "ProfileRefusesPods"


T = TypeVar("T", bound=Object)

TIMEOUT_S = 2.0
"""For one question; API servers wait ten seconds for a webhook."""
REMEMBERED_S = 1.0
"""Time for which an answer counts: a burst of pods asks once, and the watch is sooner as a rule."""
REMEMBERED_MAX = 1_000


class RecentLookup(Generic[T]):
    """A cache, and behind it the API for what the cache does not have."""

    def __init__(self, cluster: Cluster, informer: Informer[T]) -> None:
        self._cluster = cluster
        self._informer = informer
        self._answers: dict[str, tuple[T | None, float]] = {}
        self._asking = asyncio.Lock()

    def known(self, name: str) -> T | None:
        """Return the object out of the cache, or out of an answer of this second."""
        found = self._informer.get(name)
        if found is not None or not self._answers:
            return found
        return self._remembered(name)[0]

    async def find(self, name: str) -> T | None:
        """Return the object, asked of the API when it is not known; None when there is none or nobody answers."""
        found = self.known(name)
        if found is not None:
            return found
        async with self._asking:
            found, is_fresh = self._remembered(name)
            if is_fresh:
                return found
            found = await self._ask(name)
            if len(self._answers) >= REMEMBERED_MAX:
                self._answers.clear()
            self._answers[name] = found, self._cluster.clock.now()
            return found

    def _remembered(self, name: str) -> tuple[T | None, bool]:
        answer = self._answers.get(name)
        if answer is None:
            return None, False
        if not 0 <= self._cluster.clock.now() - answer[1] <= REMEMBERED_S:
            del self._answers[name]
            return None, False
        return answer[0], True

    async def _ask(self, name: str) -> T | None:
        view = self._informer.view
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._cluster.get(view, name)
        except NotFound:
            return None
        except (ApiError, TimeoutError) as error:
            facts = {"kind": view.resource.kind, "object": name, "error": str(error) or type(error).__name__}
            log.warning("object lookup failed", extra=facts)
            return None


class Matching(msgspec.Struct, frozen=True):
    """The profiles that an object matches, in order, and what its user should know."""

    profiles: list[CompiledProfile]
    warnings: tuple[str, ...] = ()


class ProfileCache:
    """All profiles as they are now. A broken one is told once, as an event on it."""

    def __init__(self, shared: ManagerContext) -> None:
        factory, cluster = shared.factory, shared.cluster
        self._events = shared.events
        self._namespaces = RecentLookup(cluster, factory.informer(Namespace))
        self._priority_classes = RecentLookup(cluster, factory.informer(PriorityClass))
        self._compiled: dict[str, CompiledProfile] = {}
        self._profiles: Profiles | None = None
        factory.informer(ClusterColocationProfile).add_handler(self._put, self._replace, self._drop)

    @property
    def profiles(self) -> Profiles:
        """Return all of them, ready to be asked."""
        if self._profiles is None:
            self._profiles = Profiles(self._compiled.values())
        return self._profiles

    async def of_pod(self, pod_labels: Mapping[str, str], namespace: str) -> Matching:
        """Return the profiles that a pod matches."""
        profiles = self.profiles
        namespace_labels = None
        warnings: tuple[str, ...] = ()
        if profiles.of_namespaces:
            found = self._namespaces.known(namespace) or await self._namespaces.find(namespace)
            if found is not None:
                namespace_labels = found.metadata.labels
            else:
                warnings = (
                    f'namespace "{namespace}" could not be looked up: ClusterColocationProfiles with a '
                    f"namespaceSelector ({profiles.of_namespaces}) were not applied",
                )
        matching = profiles.matching(pod_labels, namespace, namespace_labels)
        await self._look_up_classes(matching)
        return Matching(matching, warnings)

    async def of_reservation(self, own_labels: Mapping[str, str]) -> Matching:
        """Return the profiles that a Reservation matches: namespaces do not count."""
        matching = self.profiles.matching_anywhere(own_labels)
        await self._look_up_classes(matching)
        return Matching(matching)

    def priority_class(self, name: str) -> PriorityClass | None:
        """Return the PriorityClass, when there is one; those of matching profiles have been looked up."""
        return self._priority_classes.known(name)

    async def _look_up_classes(self, matching: list[CompiledProfile]) -> None:
        for profile in matching:
            if name := profile.source.spec.priority_class_name:
                await self._priority_classes.find(name)

    def _put(self, profile: ClusterColocationProfile) -> None:
        name = profile.metadata.name
        before = self._compiled.get(name)
        compiled = profile_matching.compile_profile(profile)
        self._compiled[name] = compiled
        self._profiles = None
        for reason, defect, known in (
            (REASON_UNUSABLE, compiled.unusable, before and before.unusable),
            (REASON_BROKEN, compiled.broken, before and before.broken),
        ):
            if defect is not None and defect != known:
                log.warning("profile invalid", extra={"profile": name, "problem": str(defect)})
                self._events.warning(profile, reason, str(defect))

    def _replace(self, old: ClusterColocationProfile, new: ClusterColocationProfile) -> None:
        if old.spec != new.spec or old.metadata.annotations != new.metadata.annotations:
            self._put(new)

    def _drop(self, profile: ClusterColocationProfile) -> None:
        self._compiled.pop(profile.metadata.name, None)
        self._profiles = None
