"""Decode built-in kinds by their Go types, fill in defaults and check them by tables.

Rules are tables by Go struct, compiled once per type into a walk that visits only what can have rules: those about
single fields (required, one of a few words, a range of numbers) are in `fields`, functions for more in `checks`.
"""

import functools
from collections.abc import Callable
from typing import Any

from koordinator.api.meta import Resource
from koordinator.cluster.errors import BadRequest, StatusCause
from koordinator.local.schema import decode, errors, known, names
from koordinator.local.schema.builtin import checks, pod_defaults
from koordinator.local.schema.builtin.defaults import DEFAULTS
from koordinator.local.schema.builtin.fields import (
    ENUMS,
    HELD_BY_VALUE,
    MAY_BE_EMPTY,
    POINTERS,
    RANGES,
    ZEROS,
)
from koordinator.local.schema.decode import struct_name
from koordinator.local.schema.known import ByIdentity, InternTable
from koordinator.local.schema.types import SchemaType, WireKind

Walk = Callable[[Any, str, list[StatusCause]], None]
"""Value, its path, and where to put the trouble found."""

_SKIPPED = frozenset({"status", "managedFields"})  # written by components, not by users


@functools.cache
def walk_of(shape: SchemaType) -> Walk | None:
    """Return the compiled rules of a type; None when nothing below it can have any."""
    match shape.kind:
        case WireKind.STRUCT:
            return _struct(shape)
        case WireKind.LIST:
            return _list(shape)
        case WireKind.MAP:
            element = shape.element
            return None if element is None or element.kind is not WireKind.STRUCT else _map(element)
    return None


def _struct(shape: SchemaType) -> Walk:
    rules: _StructRules | None = None

    def walk(value: Any, path: str, causes: list[StatusCause]) -> None:
        nonlocal rules
        if rules is None:  # compiled on first use: types may contain themselves
            rules = _StructRules(shape)
        prefix = f"{path}." if path else ""
        for name in rules.required:
            if value.get(name) is None or value[name] in _EMPTY:
                causes.append(errors.required(f"{prefix}{name}"))
        for name, zero, check in rules.zeros:
            if value.get(name) is None:
                check(zero, f"{prefix}{name}", causes)
        for name, check in rules.held_by_value:
            if value.get(name) is None:
                check({}, f"{prefix}{name}", causes)
        if rules.between is not None:
            causes += rules.between(value, path)
        checked = rules.checked
        for key, item in value.items():  # few fields of a struct are set, so go by those
            checks = checked.get(key)
            if checks is not None and item is not None:
                for check in checks:
                    check(item, f"{prefix}{key}", causes)

    return walk


_EMPTY: tuple[Any, ...] = ("", [])
"""Values that count as missing where a field is required; an empty object does not."""


class _StructRules:
    """The rules of one struct: which fields it needs, what checks each field, and what checks them together."""

    def __init__(self, shape: SchemaType) -> None:
        owner = struct_name(shape)
        self.required: list[str] = []
        self.held_by_value: list[tuple[str, Walk]] = []
        self.zeros: list[tuple[str, Any, Walk]] = []
        self.checked: dict[str, list[Walk]] = {}
        self.between = checks.STRUCTS.get(owner)
        for field in shape.fields.values():
            key = (owner, field.name)
            if field.name in _SKIPPED:
                continue
            inner = walk_of(field.type)
            by_value = field.name in HELD_BY_VALUE and field.type.kind is WireKind.STRUCT
            if by_value and key not in POINTERS:
                if inner is not None:
                    self.held_by_value.append((field.name, inner))
            elif field.required and key not in MAY_BE_EMPTY:
                self.required.append(field.name)
            found = [inner] if inner is not None else []
            if key in ENUMS:
                found.append(_enum(frozenset(ENUMS[key]), needed=key in ZEROS))
            if key in RANGES:
                found.append(_range(*RANGES[key]))
            if key in checks.FIELDS:
                found.append(_adding(checks.FIELDS[key]))
            if found:
                self.checked[field.name] = found
            if key in ZEROS:
                self.zeros += [(field.name, ZEROS[key], check) for check in found]


def _adding(find: checks.FieldCheck) -> Walk:
    def check(value: Any, path: str, causes: list[StatusCause]) -> None:
        causes += find(value, path)

    return check


def _enum(allowed: frozenset[str], *, needed: bool) -> Walk:
    def check(value: Any, path: str, causes: list[StatusCause]) -> None:
        if (value or needed) and value not in allowed:
            causes.append(errors.not_supported(path, value, allowed))

    return check


def _range(low: int, high: int, text: str) -> Walk:
    def check(value: Any, path: str, causes: list[StatusCause]) -> None:
        if not low <= value <= high:
            causes.append(errors.invalid(path, value, text))

    return check


def _list(shape: SchemaType) -> Walk | None:
    element = walk_of(shape.element) if shape.element is not None else None
    if element is None:
        return None
    inner: Walk = element

    def walk(value: Any, path: str, causes: list[StatusCause]) -> None:
        for index, item in enumerate(value):
            inner(item, f"{path}[{index}]", causes)

    return walk


def _map(element: SchemaType) -> Walk | None:
    inner = walk_of(element)
    if inner is None:
        return None
    check: Walk = inner

    def walk(value: Any, path: str, causes: list[StatusCause]) -> None:
        for key, item in value.items():
            check(item, f"{path}[{key}]", causes)

    return walk


_NO_SPEC: dict[str, Any] = {}

_LABEL_NAMES = frozenset({("", "Namespace"), ("apps", "StatefulSet")})
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
        self._rules = walk_of(shape)
        self._check = checks.CHECKS.get(kind)
        self._check_update = checks.UPDATE_CHECKS.get(kind)
        self._name_rule = _name_rule(resource)
        # Only pods come as replicas of each other.
        self._specs = InternTable() if kind == ("", "Pod") else None
        self._completed: ByIdentity[dict[str, Any]] = ByIdentity()
        self._fine: ByIdentity[bool] = ByIdentity()

    def decode(self, obj: dict[str, Any], field_validation: str) -> tuple[dict[str, Any], list[str]]:
        """Return the object without unknown fields, and warnings for them.

        `field_validation` is "Strict" (unknown fields raise), "Warn" or "Ignore" ("" means Warn).
        Raises: BadRequest for wrong types (`json: cannot unmarshal ...`) and in Strict mode (`strict decoding
        error: unknown field "spec.foo"`).
        """
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
        return decoded, errors.warnings_of(self.resource, unknown, field_validation) if unknown else []

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
        """Return the object with the defaults that the API server would fill in."""
        spec = obj.get("spec")
        if self._specs is not None and spec is not None and known.is_shared(spec):
            return self._complete(obj, spec)
        return self._default(obj) if self._default else obj

    def _complete(self, obj: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
        """Return a pod with the defaults of a shared spec, which are found once."""
        completed = self._completed.get(spec)
        if completed is None:
            completed = pod_defaults.pod_spec(spec)
            known.share(completed)
            self._completed.put(spec, completed)
        return obj if completed is spec else {**obj, "spec": completed}

    def validate(self, obj: dict[str, Any], old: dict[str, Any] | None) -> list[StatusCause]:
        """Return what is wrong with an object to be created (`old` None) or updated; field paths as Kubernetes.

        An update of one field pays for no other part: unchanged parts
        (by identity) that were fine when they were stored are not looked at again."""
        meta = obj.get("metadata") or {}
        causes: list[StatusCause] = []
        if old is None or meta is not old.get("metadata"):
            causes += names.check_metadata(
                meta,
                self.resource.namespaced,
                self._name_rule,
                is_core=self.resource.group not in ("apiextensions.k8s.io", "policy"),
            )
        if old is not None and not self._changed(obj, old):
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


def _name_rule(resource: Resource) -> names.NameRule:
    kind = (resource.group, resource.kind)
    if resource.group == _PATH_NAMES_GROUP or kind == ("policy", "PodDisruptionBudget"):
        return names.path_segment
    if kind in _LABEL_NAMES:
        return names.label_1123
    return names.label_1035 if kind in _LABEL_1035_NAMES else names.subdomain_1123
