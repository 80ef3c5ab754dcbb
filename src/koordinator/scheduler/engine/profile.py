"""From configuration to plugins: merge the plugin lists of a profile and build the plugins. Source: behaviour/scheduler
A3 (merge rules, automatic DefaultPreBind)."""

# The interfaces of extension points are abstract on purpose; here they only tell instances apart.
# mypy: disable-error-code="type-abstract"

import logging
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from koordinator.api.config_text import ConfigProblem
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.cluster.plugin_registry import why_missing
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import (
    PluginRef,
    Plugins,
    PluginSet,
    ProfileConfig,
    SchedulerConfig,
    SchedulerConfigError,
    decode_args,
)
from koordinator.scheduler.engine.extensions import Extensions
from koordinator.scheduler.engine.pick import sample_percent
from koordinator.scheduler.plugin.framework import (
    ENTRY_POINTS,
    BindPlugin,
    FilterPlugin,
    PermitPlugin,
    Plugin,
    PluginType,
    PostBindPlugin,
    PostFilterPlugin,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreScorePlugin,
    QueueSortPlugin,
    ReservePlugin,
    ScorePlugin,
)
from koordinator.scheduler.table.pod_info import PodInfo


class Participation(msgspec.Struct):
    """Plugins with the extension points (PreFilter, Filter, PreScore, Score) at which the evaluations of some classes
    of pods ask them, and in how many cycles that was."""

    pairs: tuple[tuple[str, str], ...]
    cycle_count: int = 0


log = logging.getLogger(__name__)

_SNAKE = re.compile(r"_([a-z])")
"""Extension points have Python's names inside and the file's names in messages."""

Build = Callable[[PluginType, Any], Plugin[Any]]
P = TypeVar("P", bound=Plugin[Any])

SharedKey = tuple[str, bytes, str]
"""Name, encoded arguments, and the profile for plugins that need an instance per profile."""

DEFAULT_PRE_BIND = "DefaultPreBind"
RESERVATION, REQUIRED_RESERVATION = "Reservation", "RequiredReservation"
WEIGHT_SUM_MAX = (2**31 - 1) // 100
"""So that a weighted sum of scores stays within 32 bits, as upstream asks."""

POINTS: dict[str, PluginType] = {
    "pre_enqueue": PreEnqueuePlugin,
    "queue_sort": QueueSortPlugin,
    "pre_filter": PreFilterPlugin,
    "filter": FilterPlugin,
    "post_filter": PostFilterPlugin,
    "pre_score": PreScorePlugin,
    "score": ScorePlugin,
    "reserve": ReservePlugin,
    "permit": PermitPlugin,
    "pre_bind": PreBindPlugin,
    "bind": BindPlugin,
    "post_bind": PostBindPlugin,
}
"""Extension point → what a plugin must inherit from to stand there."""


class Profile:
    """The plugins of one scheduler name, by extension point, in order."""

    def __init__(
        self,
        name: str,
        points: Mapping[str, Sequence[tuple[Plugin[Any], int]]],
        *,
        sample_percent: int | None = None,
        gates: FeatureGates | None = None,
    ) -> None:
        def at(point: str, kind: type[P]) -> tuple[P, ...]:
            return tuple(plugin for plugin, _ in points.get(point, ()) if isinstance(plugin, kind))

        self.name = name
        self.participations: dict[Hashable, Participation] = {}
        self.sample_percent = sample_percent
        """Percentage of nodes to look for (0: adaptive); None looks at all."""
        self.pre_enqueues = at("pre_enqueue", PreEnqueuePlugin)
        self.queue_sort = at("queue_sort", QueueSortPlugin)[0]
        self.pre_filters = at("pre_filter", PreFilterPlugin)
        self.filters = at("filter", FilterPlugin)
        self.post_filters = at("post_filter", PostFilterPlugin)
        self.pre_scorers = at("pre_score", PreScorePlugin)
        self.scorers = tuple(
            (plugin, weight) for plugin, weight in points["score"] if isinstance(plugin, ScorePlugin)
        )
        self.reserves = at("reserve", ReservePlugin)
        self.permits = at("permit", PermitPlugin)
        self.pre_binds = at("pre_bind", PreBindPlugin)
        self.slow_pre_binds = tuple(p for p in self.pre_binds if type(p).is_slow is not PreBindPlugin.is_slow)
        """Plugins that may wait for somebody else."""
        self.binds = at("bind", BindPlugin)
        self.post_binds = at("post_bind", PostBindPlugin)
        self.plugins = tuple({plugin.name: plugin for row in points.values() for plugin, _ in row}.values())
        gates = gates if gates is not None else FeatureGates.of(Component.SCHEDULER)
        self.extensions = Extensions(points, self.plugins, gates)
        scorers = tuple(plugin for plugin, _ in self.scorers)
        cycle = (*self.pre_filters, *self.filters, *self.pre_scorers, *scorers)
        cycle += (*self.reserves, *self.permits, *self.pre_binds, *self.extensions.stateful())
        self.refreshers = tuple(p for p in self.plugins if type(p).refresh is not Plugin.refresh)
        """Plugins with columns that depend on the time."""
        self.evaluators = tuple({plugin.name: plugin for plugin in cycle}.values())
        """Plugins with a state per pod class."""
        parts = [
            part
            for p in self.evaluators
            for part in (p.keyed_by if type(p).class_key is Plugin.class_key else (p.class_key,))
        ]
        self._key_parts = tuple(dict.fromkeys(parts))
        self._is_alone = any(
            type(p).prepare is not Plugin.prepare and type(p).class_key is Plugin.class_key and not p.keyed_by
            for p in self.evaluators
        )
        """True when a plugin prepares something for each pod and does not say from what: then no two are alike."""
        self._live = tuple(p for p in self.evaluators if type(p).live_key is not Plugin.live_key)
        self.epochal = tuple(p for p in self.evaluators if type(p).epoch is not Plugin.epoch)
        """Plugins whose answers for rows depend on more than these rows."""
        self.choosy_scorers = tuple(p for p in scorers if type(p).scores is not ScorePlugin.scores)
        """Scorers that may say that they take no part."""
        self._note_kinds()

    def _note_kinds(self) -> None:
        """Tell local plugins, which answer by what is in the row, from wide ones. Kinds of changes that they read are
        plain integers: flags are slow."""
        filters = [(index, plugin, int(plugin.reads)) for index, plugin in enumerate(self.filters)]
        self.local_filters = tuple(each for each in filters if not self.has_epoch(each[1]))
        self.wide_filters = tuple(each for each in filters if self.has_epoch(each[1]))
        scorers = [(plugin, weight, int(plugin.reads)) for plugin, weight in self.scorers]
        self.local_scorers = tuple(
            each for each in scorers if not (each[0].normalizes or self.has_epoch(each[0]))
        )
        self.wide_scorers = tuple(each for each in scorers if each not in self.local_scorers)

    def participation(
        self, skips_filter: frozenset[str], skips_score: frozenset[str], refused_by: str
    ) -> Participation:
        """Return which plugins take part in the cycles of a pod: all that do not skip, up to the one that refuses the
        pod as a whole ("" when none does). The same object for the same answers."""
        key = (skips_filter, skips_score, refused_by)
        found = self.participations.get(key)
        if found is None:
            points = self._asked(skips_filter, skips_score, refused_by)
            pairs = tuple((plugin.name, point) for point, plugins in points for plugin in plugins)
            found = self.participations[key] = Participation(pairs)
        return found

    def _asked(
        self, skips_filter: frozenset[str], skips_score: frozenset[str], refused_by: str
    ) -> Iterator[tuple[str, list[Plugin[Any]]]]:
        names = [plugin.name for plugin in self.pre_filters]
        if refused_by in names:
            yield "PreFilter", list(self.pre_filters[: names.index(refused_by) + 1])
            return
        yield "PreFilter", list(self.pre_filters)
        if refused_by:
            return  # by a transformer
        yield "Filter", [plugin for plugin in self.filters if plugin.name not in skips_filter]
        yield "PreScore", list(self.pre_scorers)
        yield "Score", [plugin for plugin, _ in self.scorers if plugin.name not in skips_score]

    def refresh(self, now_s: float) -> None:
        """Bring the columns that depend on the time up to date, as each cycle does."""
        for plugin in self.refreshers:
            plugin.refresh(now_s)

    def find(self, kind: type[P]) -> P | None:
        """Return the plugin of a kind, None where the profile has none."""
        return next((plugin for plugin in self.plugins if isinstance(plugin, kind)), None)

    @property
    def forget_handlers(self) -> list[Callable[[PodInfo, str], None]]:
        """Return the callbacks that plugins asked for when a placement is undone."""
        return [handler for plugin in self.plugins for handler in plugin.handle.forget_handlers]

    def class_key(self, pod: PodInfo) -> Hashable:
        """Pods with equal keys get the same answers from all plugins."""
        return pod.uid if self._is_alone else tuple([part(pod) for part in self._key_parts])

    def has_epoch(self, plugin: Plugin[Any]) -> bool:
        """Return whether the plugin's answers for rows depend on more than these rows."""
        return plugin in self.epochal

    def is_epochal(self, plugin: Plugin[Any]) -> bool:
        """Return whether the plugin's state depends on more than the pod."""
        return plugin in self.epochal or plugin in self._live

    def live_key(self, pod: PodInfo) -> Hashable:
        """Return what else pods must have in common at this moment to get the same answers."""
        return tuple([plugin.live_key(pod) for plugin in self._live])


def build_profiles(
    config: SchedulerConfig,
    registry: Mapping[str, PluginType],
    build: Build,
    gates: FeatureGates | None = None,
) -> dict[str, Profile]:
    """Profiles by scheduler name. Plugins with equal arguments are shared between profiles, so that several names cost
    no more bookkeeping than one. Raises: SchedulerConfigError."""
    shared: dict[SharedKey, Plugin[Any]] = {}
    profiles: dict[str, Profile] = {}
    configured = config.profiles or [default_plugins.shipped_profile()]
    for profile_config, (points, args) in zip(configured, read_plugins(configured, registry), strict=True):
        name = profile_config.scheduler_name
        built = {
            point: [(_built(ref.name, args, registry, build, shared, name), ref.weight) for ref in refs]
            for point, refs in points.items()
        }
        sample = sample_percent(
            config.percentage_of_nodes_to_score, profile_config.percentage_of_nodes_to_score
        )
        profile = profiles[name] = Profile(name, built, sample_percent=sample, gates=gates)
        for plugin in profile.plugins:
            if plugin.per_profile:
                plugin.handle.join(profile)
    if len({profile.queue_sort.name for profile in profiles.values()}) > 1:
        raise SchedulerConfigError("profiles", "all profiles need the same QueueSort plugin")
    sort_keys = {key for key in shared if key[0] == next(iter(profiles.values())).queue_sort.name}
    if len({args for _, args, _ in sort_keys}) > 1:
        raise SchedulerConfigError("profiles", "all profiles need the same arguments of the QueueSort plugin")
    return profiles


def read_plugins(
    profiles: Sequence[ProfileConfig], registry: Mapping[str, PluginType]
) -> list[tuple[dict[str, list[PluginRef]], dict[str, Any]]]:
    """For each profile its plugins per extension point, and the arguments of those that it configures.
    Raises: SchedulerConfigError with all that is wrong, at its place in the file."""
    problems: list[ConfigProblem] = []
    points: list[dict[str, list[PluginRef]]] = []
    args: list[dict[str, Any]] = []
    for index, profile in enumerate(profiles):
        try:
            points.append(merge_plugins(profile.plugins, registry))
        except SchedulerConfigError as error:
            problems.append(ConfigProblem(f"profiles[{index}].{in_file(error.field)}", error.reason))
    try:
        args = read_args(profiles, registry)
    except SchedulerConfigError as error:
        problems += error.problems
    if problems:
        raise SchedulerConfigError.of(problems)
    return list(zip(points, args, strict=True))


def merge_plugins(
    plugins: Plugins | None,
    registry: Mapping[str, PluginType],
) -> dict[str, list[PluginRef]]:
    """Plugins per extension point after merging the defaults with the configuration.

    Profiles without the plugin Reservation keep pods that require a reservation waiting (`required_reservation`).

    Raises: SchedulerConfigError for unknown plugins, duplicates, a plugin at a point that it does not implement, no
    or several QueueSort plugins, no Bind plugin, weights out of range.
    """
    configured = plugins or Plugins()
    multi_point = _merge_set(default_plugins.MULTI_POINT, configured.multi_point, "multiPoint")
    merged: dict[str, list[PluginRef]] = {}
    for point, kind in POINTS.items():
        own: PluginSet = getattr(configured, point)
        refs = _expand(point, kind, own, multi_point, registry)
        if point == "pre_bind" and plugins is not None:
            refs = _with_default_pre_bind(refs, own, registry)
        merged[point] = refs
    if REQUIRED_RESERVATION in registry and all(ref.name != RESERVATION for ref in merged["filter"]):
        guard = PluginRef(name=REQUIRED_RESERVATION, weight=1)
        others = [ref for ref in merged["pre_filter"] if ref.name != REQUIRED_RESERVATION]
        merged["pre_filter"] = [guard, *others]
    _check(merged)
    return merged


def _enabled(own: PluginSet, field: str) -> dict[str, PluginRef]:
    """By name. Raises: SchedulerConfigError when one is listed twice."""
    found: dict[str, PluginRef] = {}
    for ref in own.enabled:
        if ref.name in found:
            raise SchedulerConfigError(f"plugins.{field}.enabled", f"{ref.name} appears twice")
        found[ref.name] = ref
    return found


def _merge_set(defaults: Iterable[PluginRef], own: PluginSet, field: str) -> list[PluginRef]:
    """Defaults that are not disabled, with new weights where listed again, then the other enabled ones."""
    enabled = _enabled(own, field)
    disabled = {ref.name for ref in own.disabled}
    kept = [] if "*" in disabled else [ref for ref in defaults if ref.name not in disabled]
    return [enabled.pop(ref.name, ref) for ref in kept] + list(enabled.values())


def _expand(
    point: str,
    kind: PluginType,
    own: PluginSet,
    multi_point: list[PluginRef],
    registry: Mapping[str, PluginType],
) -> list[PluginRef]:
    """Return the point's plugins: re-listed multi-point ones, the other multi-point ones, the rest listed here."""
    enabled, disabled = _enabled(own, point), {ref.name for ref in own.disabled}
    expanded = []
    for ref in multi_point if "*" not in disabled else ():
        plugin = _look_up(ref.name, registry, "multiPoint")
        if issubclass(plugin, kind) and ref.name not in disabled:
            expanded.append(ref)
    everywhere = {ref.name for ref in expanded}
    relisted = [ref for ref in own.enabled if ref.name in everywhere]
    added = [ref for ref in own.enabled if ref.name not in everywhere]
    refs = []
    for ref in [*relisted, *(ref for ref in expanded if ref.name not in enabled), *added]:
        plugin = _look_up(ref.name, registry, point)
        if not issubclass(plugin, kind):
            reason = f"{ref.name} does not implement {in_file(point)}"
            raise SchedulerConfigError(f"plugins.{point}.enabled", reason)
        refs.append(PluginRef(name=ref.name, weight=ref.weight or 1))
    return refs


def in_file(name: str) -> str:
    """Return the name of an extension point, or a path with one, as files have it."""
    return _SNAKE.sub(lambda part: part[1].upper(), name)


def _look_up(name: str, registry: Mapping[str, PluginType], field: str) -> PluginType:
    plugin = registry.get(name)
    if plugin is None:
        raise SchedulerConfigError(f"plugins.{field}.enabled", why_missing(name, registry, ENTRY_POINTS))
    return plugin


def _with_default_pre_bind(
    refs: list[PluginRef], own: PluginSet, registry: Mapping[str, PluginType]
) -> list[PluginRef]:
    """Without DefaultPreBind nothing that plugins write on the pod would be stored."""
    disabled = {ref.name for ref in own.disabled}
    listed = {ref.name for ref in refs}
    if {"*", DEFAULT_PRE_BIND} & disabled or DEFAULT_PRE_BIND in listed or DEFAULT_PRE_BIND not in registry:
        return refs
    return [*refs, PluginRef(name=DEFAULT_PRE_BIND, weight=1)]


def _check(merged: Mapping[str, list[PluginRef]]) -> None:
    if len(merged["queue_sort"]) != 1:
        names = [ref.name for ref in merged["queue_sort"]]
        raise SchedulerConfigError("plugins.queueSort", f"exactly one plugin is needed, got {names}")
    if not merged["bind"]:
        raise SchedulerConfigError("plugins.bind", "at least one plugin is needed")
    if sum(ref.weight for ref in merged["score"]) > WEIGHT_SUM_MAX:
        raise SchedulerConfigError("plugins.score", f"the weights add up to more than {WEIGHT_SUM_MAX}")


def read_args(profiles: Sequence[ProfileConfig], registry: Mapping[str, PluginType]) -> list[dict[str, Any]]:
    """For each profile the arguments of the plugins that it configures. Raises: SchedulerConfigError with all that is
    wrong in any of them."""
    problems: list[ConfigProblem] = []
    found: list[dict[str, Any]] = []
    for index, profile in enumerate(profiles):
        args: dict[str, Any] = {}
        for position, entry in enumerate(profile.plugin_config):
            field = f"profiles[{index}].pluginConfig[{position}]"
            plugin = registry.get(entry.name)
            if plugin is None:
                reason = why_missing(entry.name, registry, ENTRY_POINTS)
                problems.append(ConfigProblem(f"{field}.name", reason))
                continue
            try:
                args[entry.name] = decode_args(entry.name, entry.args, plugin.args, f"{field}.args")
            except SchedulerConfigError as error:
                problems += error.problems
        found.append(args)
    if problems:
        raise SchedulerConfigError.of(problems)
    return found


def _built(
    name: str,
    args: dict[str, Any],
    registry: Mapping[str, PluginType],
    build: Build,
    shared: dict[SharedKey, Plugin[Any]],
    profile_name: str,
) -> Plugin[Any]:
    plugin_type = registry[name]
    own = args.get(name)
    if own is None:  # Defaults are decoded once, not once for each extension point.
        own = args[name] = decode_args(name, {}, plugin_type.args)
    key = (name, msgspec.json.encode(own), profile_name if plugin_type.per_profile else "")
    if key not in shared:
        shared[key] = build(plugin_type, own)
    return shared[key]
