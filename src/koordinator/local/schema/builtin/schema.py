"""`ObjectSchema` of a built-in kind: decoding by its Go types, defaults and checks from tables."""

from typing import Any

from koordinator.api.meta import Resource
from koordinator.cluster.errors import BadRequest, StatusCause
from koordinator.local.schema import decode, errors, known, metadata, names
from koordinator.local.schema.builtin import checks, pod_defaults, rules
from koordinator.local.schema.builtin.defaults import DEFAULTS
from koordinator.local.schema.known import ByIdentity, InternTable
from koordinator.local.schema.types import SchemaType

_NO_SPEC: dict[str, Any] = {}
STRICT, IGNORE = "Strict", "Ignore"

_LABEL_NAMES = frozenset({("", "Namespace")})
_LABEL_1035_NAMES = frozenset({("", "Service")})
_PATH_NAMES_GROUP = "rbac.authorization.k8s.io"


class BuiltinSchema:
    """The schema of one built-in resource's objects."""

    def __init__(self, resource: Resource, shape: SchemaType) -> None:
        self.resource = resource
        self.type = shape
        kind = (resource.group, resource.kind)
        self._decode = decode.decoder_of(shape)
        self._default = DEFAULTS.get(kind)
        self._rules = rules.walk_of(shape)
        self._check = checks.CHECKS.get(kind)
        self._check_update = checks.UPDATE_CHECKS.get(kind)
        self._name_rule = _name_rule(resource)
        # Only pods come as replicas of each other.
        self._specs = InternTable() if kind == ("", "Pod") else None
        self._completed: ByIdentity[dict[str, Any]] = ByIdentity()
        self._fine: ByIdentity[bool] = ByIdentity()

    def decode(self, obj: dict[str, Any], field_validation: str) -> tuple[dict[str, Any], list[str]]:
        """See `local.interfaces.ObjectSchema`."""
        unknown: list[str] = []
        try:
            if self._specs is not None:
                decoded = self._decode_sharing(self._specs, obj, unknown)
            else:
                decoded = self._decode(obj, unknown)
        except decode.Undecodable as error:
            raise errors.unreadable(self.resource, str(error)) from error
        except RecursionError:
            raise BadRequest("json: exceeded max depth") from None
        if not unknown or field_validation == IGNORE:
            return decoded, []
        if field_validation == STRICT:
            raise errors.strict(self.resource, unknown)
        return decoded, [f'unknown field "{path}"' for path in unknown]

    def _decode_sharing(self, specs: InternTable, obj: dict[str, Any], unknown: list[str]) -> Any:
        """Decode a new pod; its spec becomes the one that equal pods have."""
        spec = obj.get("spec")
        # A pod on a node is as good as unique.
        text = specs.text(spec) if isinstance(spec, dict) and spec and "nodeName" not in spec else None
        if text is None:
            return self._decode(obj, unknown)
        shared = specs.find(text)
        if shared is not None:
            return {**self._decode({**obj, "spec": _NO_SPEC}, unknown), "spec": shared}
        decoded = self._decode(obj, unknown)
        if not unknown:
            specs.seen(text, decoded["spec"])
        return decoded

    def default(self, obj: dict[str, Any]) -> dict[str, Any]:
        """See `local.interfaces.ObjectSchema`."""
        spec = obj.get("spec")
        if self._specs is not None and spec is not None and known.is_shared(spec):
            return self._complete(obj, spec)
        return self._default(obj) if self._default else obj

    def _complete(self, obj: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
        """Return a pod with the defaults of a shared spec, which are found once."""
        completed = self._completed.get(spec)
        if completed is None:
            completed = pod_defaults.spec(spec)
            known.share(completed)
            self._completed.put(spec, completed)
        return obj if completed is spec else {**obj, "spec": completed}

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
        if self._specs is not None and old is None:
            return causes + self._check_new_pod(obj)
        if self._rules is not None:
            self._rules(obj, "", causes)
        if self._check is not None:
            causes += self._check(obj)
        if old is not None and self._check_update is not None:
            causes += self._check_update(obj, old)
        return causes

    def _check_new_pod(self, obj: dict[str, Any]) -> list[StatusCause]:
        """Return what is wrong with a pod beyond its metadata; a spec that was fine is not looked at again."""
        assert self._rules is not None and self._check is not None, self.resource
        spec, causes = obj.get("spec"), list[StatusCause]()
        if self._fine.get(spec):
            self._rules({**obj, "spec": None}, "", causes)
            return causes
        self._rules(obj, "", causes)
        causes += self._check(obj)
        # Whether ephemeral containers may be there depends on the pod.
        if not causes and spec is not None and known.is_shared(spec) and "ephemeralContainers" not in spec:
            self._fine.put(spec, True)
        return causes

    @staticmethod
    def _changed(obj: dict[str, Any], old: dict[str, Any]) -> bool:
        """Return whether anything but metadata and status differs."""
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
