"""The scheduler's configuration file: `KubeSchedulerConfiguration`, `kubescheduler.config.k8s.io/v1`.

Unknown fields are refused. Source: behaviour/scheduler A3 and B8.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from koordinator.api import config_text, duration, user_files, yaml_text
from koordinator.api.config_text import (
    ConfigFileError,
    ConfigPart,
    ConfigProblem,
    Duration,
    election_problems,
    problems_of,
    without_nulls,
)

API_VERSION = "kubescheduler.config.k8s.io/v1"
KIND = "KubeSchedulerConfiguration"


class SchedulerConfigError(ConfigFileError):
    """The scheduler's configuration cannot be used."""

    of_what = "scheduler configuration"


def check_version(body: Mapping[str, Any], kind: str, field: str = "") -> None:
    """Refuse a text whose `apiVersion` and `kind` are absent or not ours. Raises: SchedulerConfigError."""
    if found := config_text.version_problems(body, API_VERSION, kind, field):
        raise SchedulerConfigError.of(found)


def convert(body: Any, kind: type[msgspec.Struct], field: str = "") -> Any:
    """`body` as `kind`. `null` means "not set", as upstream. Raises: SchedulerConfigError with all problems."""
    body = without_nulls(body)
    if found := problems_of(body, kind, field, strict=True):
        raise SchedulerConfigError.of(found)
    return msgspec.convert(body, kind)


DEFAULT_SCHEDULER_NAME = "koord-scheduler"
STOCK_SCHEDULER_NAME = "default-scheduler"

QPS_DEFAULT = 50.0
"""Upstream's, for a `clientConnection.qps` of 0."""
EXTENDER_TIMEOUT_DEFAULT_S = 5.0

Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
NonNegative = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(gt=0)]


class PluginRef(ConfigPart, frozen=True):
    """A plugin at an extension point; `weight` counts for Score only, 0 means 1."""

    name: str
    weight: NonNegative = 0


class PluginSet(ConfigPart, frozen=True):
    """Changes to the default plugins of a point; `*` in `disabled` takes all defaults out."""

    enabled: list[PluginRef] = []
    disabled: list[PluginRef] = []


class Plugins(ConfigPart, frozen=True):
    """Plugins per extension point; `multi_point` means every point that a plugin implements."""

    pre_enqueue: PluginSet = PluginSet()
    queue_sort: PluginSet = PluginSet()
    pre_filter: PluginSet = PluginSet()
    filter: PluginSet = PluginSet()
    post_filter: PluginSet = PluginSet()
    pre_score: PluginSet = PluginSet()
    score: PluginSet = PluginSet()
    reserve: PluginSet = PluginSet()
    permit: PluginSet = PluginSet()
    pre_bind: PluginSet = PluginSet()
    bind: PluginSet = PluginSet()
    post_bind: PluginSet = PluginSet()
    multi_point: PluginSet = PluginSet()


class PluginConfig(ConfigPart, frozen=True):
    """Arguments of one plugin, decoded by the plugin's own struct."""

    name: str
    args: dict[str, Any] = {}


class ProfileConfig(ConfigPart, frozen=True):
    """The rules for placing pods with this `scheduler_name`.

    `percentage_of_nodes_to_score` unset here and in the file means all nodes: evaluating rows is cheap, and
    the best node is better than the best of a sample. A number samples as the stock scheduler does
    (0: its adaptive sample).
    """

    scheduler_name: str = DEFAULT_SCHEDULER_NAME
    percentage_of_nodes_to_score: Percent | None = None
    plugins: Plugins | None = None
    plugin_config: list[PluginConfig] = []


class LeaderElection(config_text.LeaderElection, frozen=True):
    """Lease that lets one of several schedulers work.

    Name and namespace default to those of the stock scheduler, so that a file written for it keeps one of
    the two idle while one replaces the other; the configuration that an installation brings has its own.
    """

    resource_name: str = "kube-scheduler"
    resource_namespace: str = "kube-system"


class ClientConnection(ConfigPart, frozen=True):
    """The connection to the API.

    `qps` is our own limit in requests per second, with `burst` at once: unset or negative means none, as API
    servers have priority and fairness; 0 means upstream's 50. We speak JSON only; the content types are read
    so that users' files work.
    """

    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = "application/json"
    qps: float | None = None
    burst: NonNegative = 100

    @property
    def requests_per_s(self) -> float | None:
        """Return the limit in force, None for none."""
        if self.qps is None or self.qps < 0:
            return None
        return self.qps or QPS_DEFAULT


class ExtenderManagedResource(ConfigPart, frozen=True):
    """An extended resource that an extender takes care of; `ignored_by_scheduler`: our own filter does not
    look at it."""

    name: str
    ignored_by_scheduler: bool = False


class ExtenderTls(ConfigPart, frozen=True):
    """Trust for and identity towards an extender; `*_data` is base64 of PEM and wins over the file."""

    insecure: bool = False
    server_name: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    cert_data: str = ""
    key_data: str = ""
    ca_data: str = ""


class Extender(ConfigPart, frozen=True):
    """A service that is asked over HTTP at `<url_prefix>/<verb>`; an empty verb means that it is not asked.

    `weight` multiplies its scores (0 to 10); `ignorable` goes on without it when it fails. With
    `managed_resources` only pods that request one of them are shown to it.
    """

    url_prefix: str
    filter_verb: str = ""
    preempt_verb: str = ""
    prioritize_verb: str = ""
    weight: int = 0
    bind_verb: str = ""
    enable_https: bool = msgspec.field(default=False, name="enableHTTPS")
    tls_config: ExtenderTls | None = None
    http_timeout: Duration = msgspec.field(default="0s", name="httpTimeout")
    node_cache_capable: bool = False
    managed_resources: list[ExtenderManagedResource] = []
    ignorable: bool = False

    @property
    def timeout_s(self) -> float:
        """Return the time limit of one call; unset means 5 s, as upstream."""
        return duration.parse(self.http_timeout) or EXTENDER_TIMEOUT_DEFAULT_S


class SchedulerConfig(ConfigPart, frozen=True):
    """The file. `parallelism` caps the bindings under way at 16 times it (256 by default), as there are no
    worker threads to count. `delay_cache_until_active` fills the caches only after becoming leader.
    `enable_contention_profiling` is read so that users' files work: there are no locks to profile."""

    api_version: str = API_VERSION
    kind: str = KIND
    parallelism: Positive = 16
    leader_election: LeaderElection = LeaderElection()
    client_connection: ClientConnection = ClientConnection()
    percentage_of_nodes_to_score: Percent | None = None
    pod_initial_backoff_seconds: Positive = 1
    pod_max_backoff_seconds: NonNegative = 10
    profiles: list[ProfileConfig] = []
    extenders: list[Extender] = []
    delay_cache_until_active: bool = False
    enable_profiling: bool = True
    enable_contention_profiling: bool = True

    @property
    def bindings_max(self) -> int:
        """Bindings under way at a time."""
        return self.parallelism * 16


def parse(text: str | bytes) -> SchedulerConfig:
    """Return the configuration in a YAML or JSON text, which says what it is (`apiVersion`, `kind`).
    Raises: SchedulerConfigError with everything that is wrong."""
    body = config_text.read_yaml(text, SchedulerConfigError)
    check_version(body, KIND)
    return decode(body | {"profiles": _named(body.get("profiles"))})


def read(path: Path) -> SchedulerConfig:
    """Return the configuration in a file. Raises: FileError, which names it, for what is no YAML; SchedulerConfigError;
    OSError."""
    text = user_files.read_text(path)
    try:
        yaml_text.load(text)
    except yaml_text.YamlError as error:
        raise user_files.FileError(str(path), "", f"no YAML: {error}") from error
    return parse(text)


def decode(body: Any) -> SchedulerConfig:
    """Return the configuration in a decoded JSON object. Raises: SchedulerConfigError."""
    if isinstance(body, dict):
        check_version({"apiVersion": API_VERSION, "kind": KIND} | body, KIND)
    found: SchedulerConfig = convert(body, SchedulerConfig)
    if problems := [
        *election_problems(found.leader_election),
        *_backoff_problems(found),
        *_profile_problems(found.profiles),
        *_extender_problems(found.extenders),
    ]:
        raise SchedulerConfigError.of(problems)
    return found


def decode_args(plugin: str, args: Any, kind: type[msgspec.Struct], field: str = "") -> Any:
    """Arguments of a plugin as its struct; `apiVersion` and `kind` may be left out. `field` is where they stand in the
    file. Raises: SchedulerConfigError."""
    field = field or f"pluginConfig[{plugin}].args"
    if isinstance(args, dict):
        wanted = f"{plugin}Args"
        check_version({"apiVersion": API_VERSION, "kind": wanted} | args, wanted, field)
        args = {name: part for name, part in args.items() if name not in ("apiVersion", "kind")}
    return convert(args, kind, field)


def _named(profiles: Any) -> Any:
    """Return the profiles of a file, where a single one without a name is that of the stock scheduler, as upstream; so
    is the one of a file that has none. Of several each needs its name."""
    if not profiles:
        return [{"schedulerName": STOCK_SCHEDULER_NAME}]
    if not (isinstance(profiles, list) and all(isinstance(profile, dict) for profile in profiles)):
        return profiles
    name = STOCK_SCHEDULER_NAME if len(profiles) == 1 else ""
    return [{"schedulerName": name} | config_text.without_nulls(profile) for profile in profiles]


def _backoff_problems(config: SchedulerConfig) -> Iterator[ConfigProblem]:
    # 0 switches backoff off, so it is no contradiction.
    if 0 < config.pod_max_backoff_seconds < config.pod_initial_backoff_seconds:
        reason = f"must not be below podInitialBackoffSeconds ({config.pod_initial_backoff_seconds})"
        yield ConfigProblem("podMaxBackoffSeconds", reason)


def _profile_problems(profiles: list[ProfileConfig]) -> Iterator[ConfigProblem]:
    seen: dict[str, int] = {}
    for index, profile in enumerate(profiles):
        name = profile.scheduler_name
        if not name:
            yield ConfigProblem(f"profiles[{index}].schedulerName", "must not be empty")
        elif name in seen:
            reason = f"{name!r} appears twice: it is that of profiles[{seen[name]}]"
            yield ConfigProblem(f"profiles[{index}].schedulerName", reason)
        seen.setdefault(name, index)
        counts = Counter(entry.name for entry in profile.plugin_config)
        for position, entry in enumerate(profile.plugin_config):
            if counts[entry.name] > 1:
                counts[entry.name] = 1  # said once
                field = f"profiles[{index}].pluginConfig[{position}].name"
                yield ConfigProblem(field, f"{entry.name!r} appears twice")


def _extender_problems(extenders: list[Extender]) -> Iterator[ConfigProblem]:
    binders = [index for index, each in enumerate(extenders) if each.bind_verb]
    if len(binders) > 1:
        yield ConfigProblem(
            f"extenders[{binders[1]}].bindVerb", f"extenders[{binders[0]}] binds: only one can"
        )
    managed: dict[str, int] = {}
    for index, extender in enumerate(extenders):
        field = f"extenders[{index}]"
        if not extender.url_prefix.startswith(("http://", "https://")):
            yield ConfigProblem(
                f"{field}.urlPrefix", f"{extender.url_prefix!r} is not an http:// or https:// address"
            )
        if extender.prioritize_verb and extender.weight <= 0:
            yield ConfigProblem(f"{field}.weight", "must be positive when prioritizeVerb is set")
        if duration.parse(extender.http_timeout) < 0:
            yield ConfigProblem(f"{field}.httpTimeout", "must not be negative")
        for position, resource in enumerate(extender.managed_resources):
            where = f"{field}.managedResources[{position}].name"
            domain, slash, _ = resource.name.partition("/")
            if not slash or domain == "kubernetes.io" or domain.endswith(".kubernetes.io"):
                yield ConfigProblem(where, f"{resource.name!r} is no extended resource")
            elif resource.name in managed:
                yield ConfigProblem(
                    where, f"{resource.name!r} is managed by extenders[{managed[resource.name]}] too"
                )
            managed.setdefault(resource.name, index)
