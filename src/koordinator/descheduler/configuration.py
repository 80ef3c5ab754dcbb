"""The descheduler's configuration file: `DeschedulerConfiguration`, `descheduler/v1alpha2`.

Unknown fields are refused, also in selectors and arguments, and every problem is told at once. Source:
behaviour/descheduler 2.
"""

import ipaddress
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from koordinator.api import config_text, defaults, duration, user_files
from koordinator.api.affinity import LabelSelector
from koordinator.api.config_text import ConfigFileError, ConfigPart, ConfigProblem, Duration
from koordinator.api.errors import ProtocolError
from koordinator.api.label_selector import compile_selector
from koordinator.api.meta import ViewPart
from koordinator.cluster.plugin_registry import PluginRegistry, why_missing
from koordinator.descheduler.config import API_VERSION
from koordinator.descheduler.config.checks import NonNegative
from koordinator.descheduler.config.migration import RESERVATION_FIRST
from koordinator.descheduler.metrics import LEASE
from koordinator.descheduler.plugin import (
    ENTRY_POINTS,
    BalancePlugin,
    CycleLimits,
    DeschedulePlugin,
    EvictPlugin,
    FilterPlugin,
    Plugin,
)

MIGRATION_CONTROLLER = "MigrationController"


class PluginName(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = ""


class PluginSet(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plugins switched on and defaults switched off at one extension point."""

    enabled: list[PluginName] = []
    disabled: list[PluginName] = []


class Plugins(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plugin sets by extension point."""

    deschedule: PluginSet = PluginSet()
    balance: PluginSet = PluginSet()
    evict: PluginSet = PluginSet()
    filter: PluginSet = PluginSet()


class Enabled(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plugins that run, in order, by extension point."""

    deschedule: list[str]
    balance: list[str]
    evict: list[str]
    filter: list[str]


def enabled_plugins(plugins: Plugins) -> Enabled:
    """Return the defaults merged with what a profile says. Source: behaviour/descheduler 2.2."""
    return Enabled(
        deschedule=_merge([], plugins.deschedule),
        balance=_merge([], plugins.balance),
        evict=_merge([MIGRATION_CONTROLLER], plugins.evict),
        filter=_merge([MIGRATION_CONTROLLER], plugins.filter),
    )


def _merge(defaults: list[str], chosen: PluginSet) -> list[str]:
    """Defaults that are not disabled (those also enabled keep their place), then the enabled ones."""
    disabled = {plugin.name for plugin in chosen.disabled}
    kept = [] if "*" in disabled else [name for name in defaults if name not in disabled]
    added = [plugin.name for plugin in chosen.enabled]
    for name in kept:
        if name in added:  # named twice it stays twice, which is an error
            added.remove(name)
    return kept + added


KIND = "DeschedulerConfiguration"
DEFAULT_PROFILE = "koord-descheduler"
HEALTH_PORT = 10251
POINTS: Mapping[str, type[Plugin]] = {
    "deschedule": DeschedulePlugin,
    "balance": BalancePlugin,
    "evict": EvictPlugin,
    "filter": FilterPlugin,
}


class DeschedulerConfigError(ConfigFileError):
    """The descheduler's configuration cannot be used."""

    of_what = "descheduler configuration"


class LeaderElection(config_text.LeaderElection, frozen=True):
    """Lease that lets one of several deschedulers work."""

    resource_name: str = LEASE
    resource_namespace: str = defaults.NAMESPACE


class ClientConnection(ConfigPart, frozen=True):
    """The connection to the API; content types are read so that users' files work: we speak JSON."""

    kubeconfig: str = ""
    content_type: str = ""
    accept_content_types: str = ""
    qps: float = 50.0
    burst: NonNegative = 100


class PluginConfig(ConfigPart, frozen=True):
    """Arguments of one plugin."""

    name: str
    args: dict[str, Any] = {}


class ProfileConfig(ConfigPart, frozen=True):
    """Plugins that work together, on the nodes that the selector matches (all without one)."""

    name: str = ""
    node_selector: LabelSelector | None = None
    plugins: Plugins = Plugins()
    plugin_config: list[PluginConfig] = []

    @property
    def enabled(self) -> Enabled:
        """Return the plugins that run, by extension point."""
        return enabled_plugins(self.plugins)

    def raw_args(self, plugin: str) -> dict[str, Any]:
        """Return the arguments as they are written; none when nothing is."""
        return next((one.args for one in self.plugin_config if one.name == plugin), {})


class DeschedulerConfig(ConfigPart, frozen=True):
    """The file. `descheduling_interval` 0 runs one cycle; `enable_contention_profiling` is read so that users' files
    work: one thread contends with nobody."""

    api_version: str = API_VERSION
    kind: str = KIND
    leader_election: LeaderElection = LeaderElection()
    client_connection: ClientConnection = ClientConnection()
    enable_profiling: bool = True
    enable_contention_profiling: bool = True
    healthz_bind_address: str = f"0.0.0.0:{HEALTH_PORT}"
    metrics_bind_address: str = f"0.0.0.0:{HEALTH_PORT}"
    descheduling_interval: Duration = "0s"
    dry_run: bool = False
    profiles: list[ProfileConfig] = msgspec.field(
        default_factory=lambda: [ProfileConfig(name=DEFAULT_PROFILE)]
    )
    node_selector: LabelSelector | None = None
    max_no_of_pods_to_evict_per_node: NonNegative | None = None
    max_no_of_pods_to_evict_per_namespace: NonNegative | None = None
    max_no_of_pods_to_evict_total: NonNegative | None = None

    @property
    def interval_s(self) -> float:
        return duration.parse(self.descheduling_interval)

    @property
    def limits(self) -> CycleLimits:
        return CycleLimits(
            per_node=self.max_no_of_pods_to_evict_per_node,
            per_namespace=self.max_no_of_pods_to_evict_per_namespace,
            total=self.max_no_of_pods_to_evict_total,
        )


def parse(text: str | bytes, registry: PluginRegistry[Plugin]) -> DeschedulerConfig:
    """Return the configuration in a YAML or JSON text. Raises: DeschedulerConfigError with everything that is wrong."""
    body = config_text.read_yaml(text, DeschedulerConfigError)
    if found := config_text.version_problems(body, API_VERSION, KIND):
        raise DeschedulerConfigError.of(found)
    return decode(body, registry)


def read(path: Path, registry: PluginRegistry[Plugin]) -> DeschedulerConfig:
    """Return the configuration in a file. Raises: FileError, DeschedulerConfigError, OSError."""
    return parse(user_files.read_text(path), registry)


def decode(body: Any, registry: PluginRegistry[Plugin]) -> DeschedulerConfig:
    """Return the configuration in a decoded JSON object. Raises: DeschedulerConfigError."""
    body = config_text.without_nulls(body)
    if found := config_text.problems_of(body, DeschedulerConfig, "", strict=True):
        raise DeschedulerConfigError.of(found)
    decoded = msgspec.convert(body, DeschedulerConfig)
    if not decoded.profiles:
        decoded = replace(decoded, profiles=DeschedulerConfig().profiles)
    if len(decoded.profiles) == 1 and not decoded.profiles[0].name:
        decoded = replace(decoded, profiles=[replace(decoded.profiles[0], name=DEFAULT_PROFILE)])
    if found := list(problems(decoded, registry)):
        raise DeschedulerConfigError.of(found)
    return decoded


def problems(config: DeschedulerConfig, registry: PluginRegistry[Plugin]) -> Iterator[ConfigProblem]:
    """Yield everything that cannot work although each member alone is right."""
    yield from config_text.election_problems(config.leader_election)
    for field, address in (
        ("healthzBindAddress", config.healthz_bind_address),
        ("metricsBindAddress", config.metrics_bind_address),
    ):
        try:
            socket_address(address)
        except ValueError as error:
            yield ConfigProblem(field, str(error))
    if config.interval_s < 0:
        yield ConfigProblem("deschedulingInterval", "must not be negative")
    yield from _selector_problems(config.node_selector, "nodeSelector")
    names = Counter(profile.name for profile in config.profiles)
    for index, profile in enumerate(config.profiles):
        field = f"profiles[{index}]"
        if not profile.name:
            yield ConfigProblem(f"{field}.name", "is empty: with several profiles each needs a name")
        elif names[profile.name] > 1:
            yield ConfigProblem(f"{field}.name", f"{profile.name!r} appears twice")
        yield from _selector_problems(profile.node_selector, f"{field}.nodeSelector")
        yield from _plugin_problems(profile, field, registry)
        yield from _args_problems(profile, field, registry)
    yield from _shared_controller_problems(config)
    yield from _plan_problems(config)


def socket_address(text: str) -> tuple[str, int]:
    """Return (host, port) of `host:port`; a bare IP gets the port of health checks, an empty host is any.
    Raises: ValueError."""
    try:
        return str(ipaddress.ip_address(text)), HEALTH_PORT
    except ValueError:
        pass
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ValueError(f"{text!r} is no host:port")
    return host.strip("[]") or "0.0.0.0", int(port)


def _selector_problems(selector: LabelSelector | None, field: str) -> Iterator[ConfigProblem]:
    if selector is not None:
        try:
            compile_selector(selector)
        except ProtocolError as error:
            yield ConfigProblem(field, error.reason)


def _plugin_problems(
    profile: ProfileConfig, field: str, registry: PluginRegistry[Plugin]
) -> Iterator[ConfigProblem]:
    enabled = profile.enabled
    for point, kind in POINTS.items():
        names: list[str] = getattr(enabled, point)
        for name in dict.fromkeys(names):
            where = f"{field}.plugins.{point}"
            found = registry.get(name)
            if names.count(name) > 1:
                yield ConfigProblem(where, f"{name} is enabled twice")
            if found is None:
                yield ConfigProblem(where, why_missing(name, registry, ENTRY_POINTS))
            elif not issubclass(found, kind):
                points = ", ".join(p for p, other in POINTS.items() if issubclass(found, other))
                yield ConfigProblem(where, f"{name} cannot be enabled here, only at {points}")
    if not enabled.evict:
        yield ConfigProblem(f"{field}.plugins.evict", "no evict plugin is enabled")
    if len(enabled.evict) > 1:
        yield ConfigProblem(f"{field}.plugins.evict", "only one evict plugin can be enabled")


def _args_problems(
    profile: ProfileConfig, field: str, registry: PluginRegistry[Plugin]
) -> Iterator[ConfigProblem]:
    counts = Counter(entry.name for entry in profile.plugin_config)
    for index, entry in enumerate(profile.plugin_config):
        where = f"{field}.pluginConfig[{index}]"
        if counts[entry.name] > 1:
            yield ConfigProblem(f"{where}.name", f"{entry.name!r} appears twice")
            counts[entry.name] = 1  # said once
        plugin = registry.get(entry.name)
        if plugin is None:
            yield ConfigProblem(f"{where}.name", why_missing(entry.name, registry, ENTRY_POINTS))
            continue
        yield from plugin.problems(entry.args, f"{where}.args")
    configured = {entry.name for entry in profile.plugin_config}
    for name in dict.fromkeys(name for point in POINTS for name in getattr(profile.enabled, point)):
        plugin = registry.get(name)
        if plugin is not None and name not in configured:
            yield from plugin.problems({}, f"{field}.pluginConfig of {name}")


def _shared_controller_problems(config: DeschedulerConfig) -> Iterator[ConfigProblem]:
    """One controller carries out the jobs of all profiles, so it can have one set of arguments only."""
    name = MIGRATION_CONTROLLER
    using = [one for one in config.profiles if name in (*one.enabled.evict, *one.enabled.filter)]
    for other in using[1:]:
        if other.raw_args(name) != using[0].raw_args(name):
            reason = (
                f"arguments of {name} differ from those of profile {using[0].name!r}: they share a controller"
            )
            yield ConfigProblem(f"profiles[{config.profiles.index(other)}].pluginConfig", reason)


def _plan_problems(config: DeschedulerConfig) -> Iterator[ConfigProblem]:
    """Plans have destinations, which only jobs that reserve room first can keep."""
    for index, profile in enumerate(config.profiles):
        is_planned = profile.raw_args("LowNodeLoad").get("plan") is not None
        migration = profile.raw_args(MIGRATION_CONTROLLER)
        if not is_planned or "LowNodeLoad" not in profile.enabled.balance:
            continue
        where = f"profiles[{index}]"
        if profile.enabled.evict != [MIGRATION_CONTROLLER]:
            reason = f"LowNodeLoad with a plan needs {MIGRATION_CONTROLLER} as evict plugin"
            yield ConfigProblem(f"{where}.plugins.evict", reason)
        elif migration.get("defaultJobMode", RESERVATION_FIRST) != RESERVATION_FIRST:
            reason = f"LowNodeLoad with a plan needs defaultJobMode {RESERVATION_FIRST}"
            yield ConfigProblem(f"{where}.pluginConfig of {MIGRATION_CONTROLLER}", reason)
