"""`ObjectSchema` of a built-in kind: decoding by its Go types, defaults and checks from tables."""

from typing import Any

from koordinator.api.meta import Resource
from koordinator.cluster.errors import BadRequest, StatusCause
from koordinator.local.schema import decode, errors, metadata, names
from koordinator.local.schema.builtin import checks, rules
from koordinator.local.schema.builtin.defaults import DEFAULTS
from koordinator.local.schema.types import Type

STRICT, IGNORE = "Strict", "Ignore"

_LABEL_NAMES = frozenset({("", "Namespace")})
_LABEL_1035_NAMES = frozenset({("", "Service")})
_PATH_NAMES_GROUP = "rbac.authorization.k8s.io"


class BuiltinSchema:
    """What objects of one built-in resource may contain."""

    def __init__(self, resource: Resource, shape: Type) -> None:
        self.resource = resource
        self.type = shape
        kind = (resource.group, resource.kind)
        self._decode = decode.decoder_of(shape)
        self._default = DEFAULTS.get(kind)
        self._rules = rules.walk_of(shape)
        self._check = checks.CHECKS.get(kind)
        self._check_update = checks.UPDATE_CHECKS.get(kind)
        self._name_rule = _name_rule(resource)

    def decode(self, obj: dict[str, Any], field_validation: str) -> tuple[dict[str, Any], list[str]]:
        """See `local.interfaces.ObjectSchema`."""
        unknown: list[str] = []
        try:
            decoded = self._decode(obj, unknown)
        except decode.Unreadable as error:
            raise errors.unreadable(self.resource, str(error)) from error
        except RecursionError:
            raise BadRequest("json: exceeded max depth") from None
        if not unknown or field_validation == IGNORE:
            return decoded, []
        if field_validation == STRICT:
            raise errors.strict(self.resource, unknown)
        return decoded, [f'unknown field "{path}"' for path in unknown]

    def default(self, obj: dict[str, Any]) -> dict[str, Any]:
        """See `local.interfaces.ObjectSchema`."""
        return self._default(obj) if self._default else obj

    def validate(self, obj: dict[str, Any], old: dict[str, Any] | None) -> list[StatusCause]:
        """See `local.interfaces.ObjectSchema`. An update of one field pays for no other part: unchanged parts
        (by identity) that were fine when they were stored are not looked at again."""
        meta = obj.get("metadata") or {}
        causes: list[StatusCause] = []
        if old is None or meta is not old.get("metadata"):
            causes += metadata.check(
                meta,
                self.resource.namespaced,
                self._name_rule,
                is_core=self.resource.group != "apiextensions.k8s.io",
            )
        if old is not None:
            causes += metadata.check_update(meta, old.get("metadata") or {})
            if not self._changed(obj, old):
                return causes
        if self._rules is not None:
            self._rules(obj, "", causes)
        if self._check is not None:
            causes += self._check(obj)
        if old is not None and self._check_update is not None:
            causes += self._check_update(obj, old)
        return causes

    @staticmethod
    def _changed(obj: dict[str, Any], old: dict[str, Any]) -> bool:
        """Whether anything but metadata and status differs."""
        for key in obj.keys() | old.keys():
            if key not in {"metadata", "status"} and obj.get(key) is not old.get(key):
                return True
        return obj.get("status") is not old.get("status") and "spec" not in obj


def _name_rule(resource: Resource) -> metadata.NameRule:
    kind = (resource.group, resource.kind)
    if resource.group == _PATH_NAMES_GROUP:
        return names.path_segment
    if kind in _LABEL_NAMES:
        return names.label_1123
    return names.label_1035 if kind in _LABEL_1035_NAMES else names.subdomain_1123


__all__ = ["BuiltinSchema"]
