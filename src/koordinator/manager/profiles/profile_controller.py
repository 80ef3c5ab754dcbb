"""Controller `colocationprofile`: profiles for pods that wait already.

Source: behaviour/manager 15, gate ColocationProfileController.

A profile is looked at when it changes and once per `--colocation-profile-reconcile-interval`. What its pods
should say is decided in `colocation_profile`; here are the rounds, their limits, and what users are told.
"""

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from koordinator.api.core import Namespace, Pod
from koordinator.api.groups import ClusterColocationProfile
from koordinator.cluster import errors
from koordinator.cluster.backoff import Rate, TokenBucket
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.manager.parts import ManagerContext
from koordinator.manager.profiles import colocation_profile, profile_matching
from koordinator.manager.profiles.colocation_profile import ProfileError
from koordinator.manager.profiles.profile_matching import CompiledProfile

log = logging.getLogger(__name__)

AGAIN_S = 1.0
"""Time after which a round goes on that ran out of tokens or lost races."""
SLICE = 500  # pods looked at before others get their turn: some 5 ms

REASON_INVALID = "ColocationProfileInvalid"
REASON_REFUSED = "ColocationProfileRefused"
REASON_APPLIED = "ColocationProfileApplied"

_WAITING = "waits for a profile"
_REFUSALS: tuple[type[errors.ApiError], ...] = (
    *(errors.BadRequest, errors.Forbidden, errors.Invalid),
    *(errors.RequestTooLarge, errors.Unreadable),
)
"""Another try would be answered alike."""


def _waiting(pod: Pod) -> Iterable[str]:
    return (_WAITING,) if colocation_profile.waits(pod) else ()


class _Known(msgspec.Struct):
    """The memory of one profile between rounds."""

    compiled: CompiledProfile
    pods: dict[str, float] = {}
    """UID of a pod -> when it was brought in line with this version of the profile."""
    is_reported: bool = False
    """Users know that this version is of no use."""


class ColocationProfileController(ControllerLoop):
    """Brings waiting pods in line with the profiles that are managed."""

    def __init__(self, shared: ManagerContext) -> None:
        self._cluster = shared.cluster
        self._clock = shared.clock
        self._events = shared.events
        self._options = shared.options.profile_controller
        self._seed = shared.options.seed
        self._profiles = shared.factory.informer(ClusterColocationProfile)
        self._namespaces = shared.factory.informer(Namespace)
        self._pods = shared.factory.informer(Pod)
        self._pods.add_index(_WAITING, _waiting)
        self._known: dict[str, _Known] = {}
        self._bucket: TokenBucket | None = None
        if self._options.update_pod_qps > 0:
            rate = Rate(per_s=self._options.update_pod_qps, burst=max(self._options.update_pod_burst, 1))
            self._bucket = TokenBucket(rate, shared.clock.now())
        self._controller: Controller[str] = Controller("colocationprofile", self._reconcile)
        shared.metrics.queues.watch("colocationprofile", self._controller.queue)
        self._profiles.add_handler(self._add, lambda _, profile: self._add(profile), self._add)
        self._informers = [self._profiles, self._namespaces, self._pods]

    def _add(self, profile: ClusterColocationProfile) -> None:
        self._controller.queue.add(profile.metadata.name)

    async def _reconcile(self, name: str) -> float | None:
        profile = self._profiles.get(name)
        if profile is None or profile.metadata.deletion_timestamp:
            self._known.pop(name, None)
            return None
        interval_s = self._options.reconcile_interval_s
        if not colocation_profile.is_managed(profile, by_default=self._options.reconcile_by_default):
            self._known.pop(name, None)
            return None  # a label of it is a change, which brings it here again
        known = self._current(profile)
        defect = known.compiled.unusable or known.compiled.broken
        if defect is not None:
            if not known.is_reported:
                known.is_reported = True
                self._events.warning(profile, REASON_INVALID, f"changes no pod: {defect}")
            return None
        return min(await self._round(known), interval_s)

    def _current(self, profile: ClusterColocationProfile) -> _Known:
        """Return what is known of this version of the profile; pods of another version are due again."""
        known = self._known.get(profile.metadata.name)
        before = known.compiled.source.metadata if known is not None else None
        if known is None or before is None or before.resource_version != profile.metadata.resource_version:
            known = self._known[profile.metadata.name] = _Known(profile_matching.compile_profile(profile))
        return known

    async def _round(self, known: _Known) -> float:
        """Look at all pods that wait; seconds until the next round."""
        now_s = self._clock.now()
        expire_s = self._options.expire_pod_cache_s
        known.pods = {uid: at_s for uid, at_s in known.pods.items() if now_s - at_s < expire_s}
        refused: dict[str, str] = {}
        lost_races = False
        for number, pod in enumerate(self._pods.by_index(_WAITING, _WAITING), 1):
            if number % SLICE == 0:
                await asyncio.sleep(0)
            if not self._is_due(known, pod, now_s):
                continue
            try:
                if not self._is_drawn(known.compiled, pod):
                    continue
                if known.compiled.source.spec.patch or colocation_profile.metadata_patch(pod, known.compiled):
                    if self._bucket is not None and not self._bucket.try_take(now_s):
                        self._report_refusals(known, refused)
                        return AGAIN_S
                    await self._bring_in_line(pod, known.compiled)
            except (errors.Conflict, errors.NotFound):
                lost_races = True  # it changed or went meanwhile
                continue
            except ProfileError as error:
                refused[pod.key] = error.reason
            except _REFUSALS as error:
                refused[pod.key] = str(error)
            known.pods[pod.metadata.uid] = now_s
        self._report_refusals(known, refused)
        return AGAIN_S if lost_races else self._options.reconcile_interval_s

    def _is_due(self, known: _Known, pod: Pod, now_s: float) -> bool:
        done_s = known.pods.get(pod.metadata.uid)
        if done_s is not None and now_s - done_s < self._options.force_update_pod_s:
            return False
        namespace = self._namespaces.get(pod.metadata.namespace)
        found = namespace.metadata.labels if namespace is not None else None
        return colocation_profile.matches(known.compiled, pod.metadata.labels, found)

    def _is_drawn(self, compiled: CompiledProfile, pod: Pod) -> bool:
        drawn = colocation_profile.steady_draw(self._seed, compiled.source, pod.metadata.uid)
        return colocation_profile.is_drawn(compiled, lambda: drawn)

    async def _bring_in_line(self, pod: Pod, compiled: CompiledProfile) -> None:
        """One patch, for exactly the version that was looked at. Raises: ApiError, ProfileError."""
        meta = pod.metadata
        if compiled.source.spec.patch:
            path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}"
            found = await self._cluster.request("GET", path)
            seen = found.get("metadata") or {}
            still_waits = seen.get("uid") == meta.uid and not (found.get("spec") or {}).get("nodeName")
            if not still_waits:
                return
            patch, guard = colocation_profile.whole_patch(found, compiled), seen.get("resourceVersion", "")
        else:
            patch, guard = colocation_profile.metadata_patch(pod, compiled), meta.resource_version
        if not patch:
            return
        changed = _changed_keys(patch)
        metadata = {**(patch.get("metadata") or {}), "uid": meta.uid, "resourceVersion": guard}
        await self._cluster.patch(Pod, meta.name, {**patch, "metadata": metadata}, meta.namespace)
        message = f"ClusterColocationProfile {compiled.name} changed {', '.join(changed)}"
        self._events.normal(pod, REASON_APPLIED, message)

    def _report_refusals(self, known: _Known, refused: dict[str, str]) -> None:
        if refused:
            first = min(refused)
            count = f"{len(refused)} pods" if len(refused) > 1 else "a pod"
            message = f"{count} could not be changed, {first} for one: {refused[first]}"
            log.warning("profile not applied", extra={"profile": known.compiled.name, "problem": message})
            self._events.warning(known.compiled.source, REASON_REFUSED, message)


def _changed_keys(patch: dict[str, object]) -> list[str]:
    """Return what a patch changes, in words."""
    metadata = patch.get("metadata")
    found = []
    for field, members in sorted(metadata.items()) if isinstance(metadata, dict) else ():
        inner = sorted(members) if isinstance(members, dict) else []
        found.append(f"{field} {', '.join(inner)}" if inner else f"metadata.{field}")
    return [*found, *(name for name in sorted(patch) if name != "metadata")]
