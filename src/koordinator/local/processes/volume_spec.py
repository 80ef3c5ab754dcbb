"""Volumes made of what the API knows, as the kubelet reads them: which objects, which keys, where, with which mode."""

from typing import Any

import msgspec

from koordinator.api import volumes
from koordinator.api.meta import ViewPart
from koordinator.api.quantity import RawQuantity

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
    """One source of a projected volume; one of the first four members is set."""

    config_map: ObjectFiles | None = None
    secret: ObjectFiles | None = None
    downward_api: FieldFiles | None = msgspec.field(name="downwardAPI", default=None)
    service_account_token: TokenFile | None = None
    cluster_trust_bundle: dict[str, Any] | None = None
    pod_certificate: dict[str, Any] | None = None


class Projected(ViewPart, frozen=True, kw_only=True):
    sources: list[Projection] = []
    default_mode: int = DEFAULT_MODE


class Volume(volumes.Volume, frozen=True, kw_only=True):
    """A volume with all that its files depend on."""

    config_map: ObjectFiles | None = None  # type: ignore[assignment]
    secret: ObjectFiles | None = None  # type: ignore[assignment]
    downward_api: FieldFiles | None = msgspec.field(name="downwardAPI", default=None)
    projected: Projected | None = None

    @property
    def projection(self) -> Projected | None:
        """The volume as a projected one, which all volumes of files made of the API are; None for others."""
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
