"""A pod as the kubelet reads it: more of the specification than components of the control plane need, among others
volumes made of what the API knows: which objects, which keys, where, with which mode."""

from typing import Any, ClassVar

import msgspec

from koordinator.api import core, decode, volumes
from koordinator.api.meta import Object, Resource, ViewPart
from koordinator.api.quantity import RawQuantity
from koordinator.api.schema import IntOrString

DEFAULT_MODE = 0o644
DEFAULT_TOKEN_LIFE_S = 3600


class KeyToPath(ViewPart, frozen=True, kw_only=True):
    """One key of an object, and the file that holds it."""

    key: str = ""
    path: str = ""
    mode: int | None = None


class ObjectFiles(ViewPart, frozen=True, kw_only=True):
    """A ConfigMap or a Secret as files (volumes of Secrets have `secret_name`); without `items` all of its keys."""

    name: str = ""
    secret_name: str = ""
    items: list[KeyToPath] = []
    default_mode: int = DEFAULT_MODE
    optional: bool | None = None


class FieldRef(ViewPart, frozen=True, kw_only=True):
    field_path: str = ""


class ResourceFieldRef(ViewPart, frozen=True, kw_only=True):
    container_name: str = ""
    resource: str = ""
    divisor: RawQuantity = 1


class FieldFile(ViewPart, frozen=True, kw_only=True):
    """A field of the pod, or an amount of one of its containers, in a file."""

    path: str = ""
    field_ref: FieldRef | None = None
    resource_field_ref: ResourceFieldRef | None = None
    mode: int | None = None


class FieldFiles(ViewPart, frozen=True, kw_only=True):
    items: list[FieldFile] = []
    default_mode: int = DEFAULT_MODE


class TokenFile(ViewPart, frozen=True, kw_only=True):
    """A token of the pod's ServiceAccount, bound to the pod."""

    audience: str = ""
    expiration_seconds: int = DEFAULT_TOKEN_LIFE_S
    path: str = ""


class Projection(ViewPart, frozen=True, kw_only=True):
    """One source of a projected volume; one of its members is set, none for a kind that this node does not have."""

    config_map: ObjectFiles | None = None
    secret: ObjectFiles | None = None
    downward_api: FieldFiles | None = None
    service_account_token: TokenFile | None = None


class Projected(ViewPart, frozen=True, kw_only=True):
    sources: list[Projection] = []
    default_mode: int = DEFAULT_MODE


class Volume(volumes.Volume, frozen=True, kw_only=True):
    """A volume with all that its files depend on."""

    config_map: ObjectFiles | None = None  # type: ignore[assignment]
    secret: ObjectFiles | None = None  # type: ignore[assignment]
    downward_api: FieldFiles | None = None
    projected: Projected | None = None

    @property
    def projection(self) -> Projected | None:
        """Return the volume as a projected one, which all volumes of files made of the API are; None for others."""
        if self.config_map is not None:
            source = Projection(config_map=self.config_map)
            return Projected(sources=[source], default_mode=self.config_map.default_mode)
        if self.secret is not None:
            source = Projection(secret=self.secret)
            return Projected(sources=[source], default_mode=self.secret.default_mode)
        if self.downward_api is not None:
            source = Projection(downward_api=self.downward_api)
            return Projected(sources=[source], default_mode=self.downward_api.default_mode)
        return self.projected


class ExecAction(ViewPart, frozen=True, kw_only=True):
    """A command in the container; it is well when it exits with 0."""

    command: list[str] = []


class HTTPHeader(ViewPart, frozen=True, kw_only=True):
    name: str = ""
    value: str = ""


class HTTPGetAction(ViewPart, frozen=True, kw_only=True):
    """A request; it is well when the status is from 200 to 399. `port` may be the name of a container's port."""

    path: str = ""
    port: IntOrString = 0
    host: str = ""
    scheme: str = ""
    http_headers: list[HTTPHeader] = []


class TCPSocketAction(ViewPart, frozen=True, kw_only=True):
    """A connection; it is well when it opens."""

    port: IntOrString = 0
    host: str = ""


class SleepAction(ViewPart, frozen=True, kw_only=True):
    seconds: int = 0


class Handler(ViewPart, frozen=True, kw_only=True):
    """Something to be done at or in a container; one member is set."""

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    sleep: SleepAction | None = None
    grpc: dict[str, Any] | None = None


class Probe(core.Probe, frozen=True, kw_only=True):
    """The time and the way a container is asked; one of the last four members is set."""

    termination_grace_period_seconds: int | None = None
    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    grpc: dict[str, Any] | None = None


class Lifecycle(ViewPart, frozen=True, kw_only=True):
    post_start: Handler | None = None
    pre_stop: Handler | None = None


class SecurityContext(ViewPart, frozen=True, kw_only=True):
    """The user and group of a container; what a process without a container image cannot have is not read."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None


class PodSecurityContext(SecurityContext, frozen=True, kw_only=True):
    """`fs_group` owns the pod's volumes, besides."""

    fs_group: int | None = None


class Container(core.Container, frozen=True, kw_only=True):
    """A container with all that its life depends on."""

    env_from: list[dict[str, Any]] = []
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle | None = None
    security_context: SecurityContext | None = None

    @property
    def is_sidecar(self) -> bool:
        """Return whether this init container runs as long as the pod."""
        return self.restart_policy == "Always"


class PodSpec(core.PodSpec, frozen=True, kw_only=True):
    containers: list[Container] = []  # type: ignore[assignment]
    init_containers: list[Container] = []  # type: ignore[assignment]
    security_context: PodSecurityContext | None = None
    volumes: list[Volume] = []  # type: ignore[assignment]


class RawPod(Object, frozen=True, kw_only=True):
    """A pod with everything that its specification and status say, as the kubelet shows it to others."""

    resource: ClassVar[Resource] = core.Pod.resource

    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class KubeletPod:
    """One version of a pod: as it was sent, and what the kubelet reads of it."""

    __slots__ = ("raw", "spec", "view")

    def __init__(self, raw: RawPod) -> None:
        """Raises: msgspec.ValidationError."""
        self.raw = raw
        self.spec = decode.from_builtins(raw.spec, PodSpec)
        status = decode.from_builtins(raw.status, core.PodStatus)
        self.view = core.Pod(metadata=raw.metadata, spec=self.spec, status=status)

    @property
    def uid(self) -> str:
        return self.raw.metadata.uid

    @property
    def key(self) -> str:
        return self.raw.key

    @property
    def grace_s(self) -> int:
        """Seconds between SIGTERM and SIGKILL, as the deletion or else the specification says."""
        asked = self.raw.metadata.deletion_grace_period_seconds
        if asked is None:
            asked = self.spec.termination_grace_period_seconds
        return 30 if asked is None else max(asked, 0)

    def security_of(self, container: Container) -> SecurityContext:
        """Return the user and group of a container: its own word counts before the pod's."""
        own = container.security_context or SecurityContext()
        shared = self.spec.security_context or SecurityContext()
        names = SecurityContext.__struct_fields__
        words = {name: (getattr(own, name), getattr(shared, name)) for name in names}
        return SecurityContext(**{name: b if a is None else a for name, (a, b) in words.items()})

    def to_json(self) -> dict[str, Any]:
        """Return the pod as the kubelet's `/pods` shows it."""
        return {
            "metadata": msgspec.to_builtins(self.raw.metadata),
            "spec": self.raw.spec,
            "status": self.raw.status,
        }
