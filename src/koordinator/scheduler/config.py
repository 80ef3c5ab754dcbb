"""The scheduler's configuration file: `KubeSchedulerConfiguration`, `kubescheduler.config.k8s.io/v1`.

Unknown fields are refused. Source: spec 03, A3 and B8.
"""

from typing import Annotated, Any

import msgspec
import yaml

from koordinator.api import duration
from koordinator.api.errors import KoordinatorError

API_VERSION = "kubescheduler.config.k8s.io/v1"
KIND = "KubeSchedulerConfiguration"
DEFAULT_SCHEDULER_NAME = "koord-scheduler"

Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]


class ConfigError(KoordinatorError, ValueError):
    """The configuration cannot be used: `field` is a path in the file, `reason` what is wrong there."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field, self.reason = field, reason

    def __str__(self) -> str:
        return f"scheduler configuration: {self.field}: {self.reason}"


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of the file's pieces."""


class PluginRef(_Part, frozen=True):
    """A plugin at an extension point; `weight` counts for Score only, 0 means 1."""

    name: str
    weight: Annotated[int, msgspec.Meta(ge=0)] = 0


class PluginSet(_Part, frozen=True):
    """Changes to the default plugins of a point; `*` in `disabled` takes all defaults out."""

    enabled: list[PluginRef] = []
    disabled: list[PluginRef] = []


class Plugins(_Part, frozen=True):
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


class PluginConfig(_Part, frozen=True):
    """Arguments of one plugin, decoded by the plugin's own struct."""

    name: str
    args: dict[str, Any] = {}


class ProfileConfig(_Part, frozen=True):
    """How pods with this `scheduler_name` are placed.

    `percentage_of_nodes_to_score` unset here and in the file means all nodes: evaluating rows is cheap, and
    the best node is better than the best of a sample. A number samples as the stock scheduler does
    (0: its adaptive sample).
    """

    scheduler_name: str = DEFAULT_SCHEDULER_NAME
    percentage_of_nodes_to_score: Percent | None = None
    plugins: Plugins | None = None
    plugin_config: list[PluginConfig] = []


class LeaderElection(_Part, frozen=True):
    """Lease that lets one of several schedulers work. Durations are texts such as `15s`."""

    leader_elect: bool = True
    lease_duration: str = "15s"
    renew_deadline: str = "10s"
    retry_period: str = "2s"
    resource_lock: str = "leases"
    resource_name: str = "koord-scheduler"
    resource_namespace: str = "koordinator-system"

    def __post_init__(self) -> None:
        lease_s, renew_s, retry_s = (
            duration.parse(text) for text in (self.lease_duration, self.renew_deadline, self.retry_period)
        )
        if not lease_s > renew_s > retry_s > 0:
            raise ValueError("leaseDuration must be above renewDeadline, and that above retryPeriod")
        if self.resource_lock != "leases":
            raise ValueError('resourceLock must be "leases"')


class ClientConnection(_Part, frozen=True):
    """How to reach the API. Without `qps` (requests per second) we do not limit ourselves: API servers
    have priority and fairness."""

    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = "application/json"
    qps: float | None = None
    burst: Annotated[int, msgspec.Meta(ge=1)] = 100


class SchedulerConfig(_Part, frozen=True):
    """The file. `parallelism` is accepted for compatibility; it caps the bindings under way at 16 times it
    (256 by default), as there are no worker threads to count. `delay_cache_until_active` fills the caches
    only after becoming leader. The profiling switches and content types are Go's: they are read, so that
    users' files work, and change nothing."""

    api_version: str = API_VERSION
    kind: str = KIND
    parallelism: Annotated[int, msgspec.Meta(gt=0)] = 16
    leader_election: LeaderElection = LeaderElection()
    client_connection: ClientConnection = ClientConnection()
    percentage_of_nodes_to_score: Percent | None = None
    pod_initial_backoff_seconds: Annotated[int, msgspec.Meta(gt=0)] = 1
    pod_max_backoff_seconds: Annotated[int, msgspec.Meta(ge=0)] = 10
    profiles: list[ProfileConfig] = []
    extenders: list[dict[str, Any]] = []
    delay_cache_until_active: bool = False
    enable_profiling: bool = False
    enable_contention_profiling: bool = False

    def __post_init__(self) -> None:
        if self.api_version != API_VERSION:
            raise ValueError(f"apiVersion must be {API_VERSION}, not {self.api_version!r}")
        if self.kind != KIND:
            raise ValueError(f"kind must be {KIND}, not {self.kind!r}")
        if 0 < self.pod_max_backoff_seconds < self.pod_initial_backoff_seconds:
            raise ValueError("podMaxBackoffSeconds must not be below podInitialBackoffSeconds")
        if self.extenders:
            raise ValueError("extenders: HTTP extenders are not supported; write a plugin instead")
        names = [profile.scheduler_name for profile in self.profiles]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"profiles: schedulerName {duplicates[0]!r} appears twice")

    @property
    def bindings_max(self) -> int:
        """Bindings under way at a time."""
        return self.parallelism * 16


def parse(text: str | bytes) -> SchedulerConfig:
    """The configuration in a YAML or JSON text.

    Raises: ConfigError.
    """
    try:
        body = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError("$", f"no YAML: {error}") from error
    return decode(body)


def decode(body: Any) -> SchedulerConfig:
    """The configuration in a decoded JSON object.

    Raises: ConfigError.
    """
    found: SchedulerConfig = _convert(body, SchedulerConfig, "$")
    return found


def decode_args(plugin: str, args: Any, kind: type[msgspec.Struct]) -> Any:
    """Arguments of a plugin as its struct; `apiVersion` and `kind` may be left out.

    Raises: ConfigError.
    """
    field = f"pluginConfig[{plugin}].args"
    if isinstance(args, dict):
        args = dict(args)
        version = args.pop("apiVersion", API_VERSION)
        if not str(version).startswith("kubescheduler.config.k8s.io/"):
            raise ConfigError(f"{field}.apiVersion", f"{version!r} is not known")
        wanted, found = f"{plugin}Args", args.pop("kind", f"{plugin}Args")
        if found != wanted:
            raise ConfigError(f"{field}.kind", f"expected {wanted}, got {found!r}")
    return _convert(args, kind, field)


def _convert(body: Any, kind: Any, field: str) -> Any:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        why, found, where = str(error).rpartition(" - at ")
        path = where.strip("`").removeprefix("$") if found else ""
        raise ConfigError(field + path, why if found else str(error)) from error
    except ValueError as error:
        raise ConfigError(field, str(error)) from error
