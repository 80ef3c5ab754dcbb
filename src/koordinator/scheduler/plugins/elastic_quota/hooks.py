"""Extensions of quotas by other packages, named in the arguments (`hookPlugins`). Source: behaviour/elastic-quota 12.

A package offers a factory as entry point of the group `ENTRY_POINTS`; the entry's name is the `factoryKey`. None ship
with this package.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from koordinator.api.core import Pod
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster.supervise import Guard, attempt
from koordinator.prometheus import Histogram, exponential
from koordinator.scheduler.config.default_plugins import HookPlugin
from koordinator.scheduler.plugin.framework import Handle
from koordinator.scheduler.plugins.elastic_quota.quota import QuotaSpec

ENTRY_POINTS = "koordinator.scheduler.quota_hooks"


class QuotaHook:
    """Hears of quotas and has a say about pods. Everything is optional; whoever raises is logged and passed over."""

    def __init__(self, key: str) -> None:
        self.key = key

    def is_quota_updated(self, old: ElasticQuota, new: ElasticQuota) -> bool:
        """Return whether an update matters to the hook in which nothing changed that shares are computed from."""
        return False

    def pre_quota_update(
        self, old: QuotaSpec | None, new: QuotaSpec | None, obj: ElasticQuota, shared: dict[str, Any]
    ) -> None:
        """Note that a quota is about to come (`old` is None), change, or go (`new` is None).

        `shared` goes from here to `post_quota_update`. A quota that moves goes first and comes then.
        """

    def post_quota_update(
        self, old: QuotaSpec | None, new: QuotaSpec | None, obj: ElasticQuota, shared: dict[str, Any]
    ) -> None:
        """It is done."""

    def on_pod_updated(self, quota: str, old: Pod | None, new: Pod | None) -> None:
        """Learn that what a pod with a place uses of its quota changed: it got its place, changed, or lost it."""

    def update_quota_status(self, quota: ElasticQuota, patch: dict[str, Any]) -> dict[str, Any] | None:
        """Return the merge patch to write instead of `patch` (which may be empty: nothing to write); None leaves it."""
        return None

    def check_pod(self, quota: str, pod: Pod) -> str:
        """Return why the pod may not be placed now; empty when it may."""
        return ""


Factory = Callable[[str, str, Handle], QuotaHook]
"""Makes a hook from its key and its `factoryArgs`."""


def factories() -> Mapping[str, Callable[[], Factory]]:
    """Return the factories that installed packages offer: `factoryKey` → how to load it."""
    return {entry.name: entry.load for entry in metadata.entry_points(group=ENTRY_POINTS)}


def _latency() -> Histogram:
    return Histogram(
        "scheduler_elastic_quota_hook_plugin_latency",
        "How long hooks of quotas take.",
        exponential(1e-6, 2, 24),
        ("plugin", "operation"),
    )


class QuotaHooks:
    """The configured hooks in order."""

    def __init__(self, hooks: Sequence[QuotaHook], now: Callable[[], float], took: Histogram) -> None:
        self._hooks = tuple(hooks)
        self._now = now
        self._guard = Guard("quota hooks")
        self._took = took

    @classmethod
    def of(cls, configured: Sequence[HookPlugin], handle: Handle) -> "QuotaHooks":
        """Raises: ValueError that names everything that is wrong with the configuration."""
        offered = factories() if configured else {}
        hooks: list[QuotaHook] = []
        problems: list[str] = []
        for number, each in enumerate(configured):
            where = f"hookPlugins[{number}]"
            if not each.key or not each.factory_key:
                problems.append(f"{where}: key and factoryKey must not be empty")
            elif each.factory_key not in offered:
                problems.append(
                    f"{where} {each.key!r}: no package offers the factory {each.factory_key!r} "
                    f"as an entry point of the group {ENTRY_POINTS!r}"
                )
            else:
                made = attempt(_make, offered[each.factory_key], each, handle)
                if isinstance(made, Exception):
                    problems.append(f"{where} {each.key!r}: {type(made).__name__}: {made}")
                else:
                    hooks.append(made)
        if problems:
            raise ValueError("; ".join(problems))
        return cls(hooks, handle.clock.now, handle.metrics.registry.shared(_latency()))

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def see_change(self, old: ElasticQuota, new: ElasticQuota) -> bool:
        """Return whether any hook cares for the difference."""
        answers = [answer for _, answer in self._ask("is_quota_updated", old, new)]
        return any(answers)

    @contextlib.contextmanager
    def notifying(self, old: QuotaSpec | None, new: QuotaSpec | None, obj: ElasticQuota) -> Iterator[None]:
        """Within, a quota changes: hooks hear of it before and after. A move between parents is two changes."""
        if old is not None and new is not None and old.parent != new.parent:
            changes: tuple[tuple[QuotaSpec | None, QuotaSpec | None], ...] = ((old, None), (None, new))
        else:
            changes = ((old, new),)
        shared: dict[tuple[str, int], dict[str, Any]] = {}
        for number, change in enumerate(changes):
            for hook in self._hooks:
                known = shared.setdefault((hook.key, number), {})
                self._call(hook, "pre_quota_update", *change, obj, known)
        yield
        for number, change in enumerate(changes):
            for hook in self._hooks:
                self._call(hook, "post_quota_update", *change, obj, shared[hook.key, number])

    def pod_updated(self, quota: str, old: Pod | None, new: Pod | None) -> None:
        """Tell the hooks that what a pod uses of its quota changed."""
        for _ in self._ask("on_pod_updated", quota, old, new):
            pass

    def update_status(self, quota: ElasticQuota, patch: dict[str, Any]) -> dict[str, Any]:
        """Return the patch as hooks want it, one after the other."""
        for hook in self._hooks:
            amended = self._call(hook, "update_quota_status", quota, patch)
            patch = patch if amended is None else amended
        return patch

    def objection(self, quota: str, pod: Pod) -> str:
        """Return what the first hook says that refuses the pod; empty when none does."""
        for key, answer in self._ask("check_pod", quota, pod):
            if answer:
                return f"CheckPod failed for hook plugin {key}, err: {answer}"
        return ""

    def _ask(self, method: str, *args: Any) -> Iterator[tuple[str, Any]]:
        for hook in self._hooks:
            yield hook.key, self._call(hook, method, *args)

    def _call(self, hook: QuotaHook, method: str, *args: Any) -> Any:
        """Call the hook and return its answer, None when it raised."""
        began_s = self._now()

        def otherwise(error: Exception) -> str | None:
            return str(error) or type(error).__name__ if method == "check_pod" else None

        try:
            return self._guard.answer(getattr(hook, method), *args, otherwise=otherwise)
        finally:
            operation = "on_pod_update" if method == "on_pod_updated" else method
            self._took.of(hook.key, operation).observe(max(self._now() - began_s, 0.0))


def _make(load: Callable[[], Factory], configured: HookPlugin, handle: Handle) -> QuotaHook:
    return load()(configured.key, configured.factory_args, handle)


NO_HOOKS = QuotaHooks((), lambda: 0.0, _latency())
