"""Checks that several kinds share: selectors, resource amounts, int-or-percent values."""

import functools
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

from koordinator.api import label_selector, quantity
from koordinator.api.affinity import LabelSelector
from koordinator.api.errors import ProtocolError
from koordinator.api.scalars import is_ip
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names

Json = dict[str, Any]

_PERCENT = re.compile(r"[0-9]+%")
_SELECTOR_OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})


def check_label_selector(selector: Json, field: str) -> list[StatusCause]:
    """Check a LabelSelector."""
    causes = names.check_labels(selector.get("matchLabels"), f"{field}.matchLabels")
    for index, item in enumerate(selector.get("matchExpressions") or ()):
        where = f"{field}.matchExpressions[{index}]"
        operator, values = item.get("operator", ""), item.get("values") or []
        if operator in {"In", "NotIn"} and not values:
            causes.append(
                errors.required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'")
            )
        elif operator in {"Exists", "DoesNotExist"} and values:
            detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            causes.append(errors.forbidden(f"{where}.values", detail))
        elif operator not in _SELECTOR_OPERATORS:
            causes.append(errors.invalid(f"{where}.operator", operator, "not a valid selector operator"))
        causes += names.check(names.qualified_name, item.get("key", ""), f"{where}.key")
        for number, value in enumerate(values):
            causes += names.check(names.label_value, value, f"{where}.values[{number}]")
    return causes


def is_empty_selector(selector: Json) -> bool:
    """Return whether a selector selects everything."""
    return not selector.get("matchLabels") and not selector.get("matchExpressions")


def selects(selector: Json, labels: Json) -> bool:
    """Return whether a LabelSelector matches labels; one that nobody can read matches nothing."""
    try:
        return label_selector.matches(msgspec.convert(selector, LabelSelector), labels)
    except (msgspec.ValidationError, ProtocolError):
        return False


@functools.lru_cache(maxsize=16384)
def nanos(amount: str) -> int:
    """Return an amount that decoding has accepted, in 10^-9 units."""
    return quantity.of(amount).nanos


def check_resource_list(resources: Json, field: str) -> list[StatusCause]:
    """Names and amounts of a map resource → quantity."""
    causes = [c for name in resources for c in names.check(names.qualified_name, name, f"{field}[{name}]")]
    return [*causes, *check_amounts(resources, field)]


def check_amounts(resources: Json, field: str) -> list[StatusCause]:
    """Amounts of a map resource → quantity: never negative, and whole where a resource is counted."""
    causes: list[StatusCause] = []
    for name, amount in resources.items():
        if nanos(amount) < 0:
            causes.append(errors.invalid(f"{field}[{name}]", amount, "must be greater than or equal to 0"))
        elif is_extended(name) and nanos(amount) % quantity.NANO:
            causes.append(errors.invalid(f"{field}[{name}]", amount, "must be an integer"))
    return causes


_PORT_MAX = 65535
COUNTED = (
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
)
COMPUTE = ("cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory")
_STORAGE = ("ephemeral-storage", "limits.ephemeral-storage", "requests.ephemeral-storage", "requests.storage")
_STANDARD_IN_QUOTAS = frozenset((*COUNTED, *COMPUTE, *_STORAGE))
_STANDARD = _STANDARD_IN_QUOTAS | {"storage"}
_STANDARD_IN_CONTAINERS = frozenset(("cpu", "memory", "ephemeral-storage"))


def check_resource_name(name: str, field: str) -> list[StatusCause]:
    """Check the name of a resource: one of Kubernetes' own, or one with a domain."""
    if causes := names.check(names.qualified_name, name, field):
        return causes
    if "/" in name or name in _STANDARD or _is_huge_page(name.removeprefix("requests.")):
        return []
    return [errors.invalid(field, name, "must be a standard resource type or fully qualified")]


def check_container_resource(name: str, field: str) -> list[StatusCause]:
    """Check the name of a resource that containers can request."""
    causes = check_resource_name(name, field)
    if "/" not in name:
        if name not in _STANDARD_IN_CONTAINERS and not _is_huge_page(name):
            causes.append(errors.invalid(field, name, "must be a standard resource for containers"))
    elif not is_native(name) and not is_extended(name):
        causes.append(errors.invalid(field, name, "doesn't follow extended resource name standard"))
    return causes


def is_standard_in_quotas(name: str) -> bool:
    """Return whether a resource is one of Kubernetes' own that quotas know."""
    return name in _STANDARD_IN_QUOTAS or _is_huge_page(name.removeprefix("requests."))


def is_native(name: str) -> bool:
    """Return whether a resource belongs to Kubernetes itself: it has no domain, or one of Kubernetes' own."""
    return "/" not in name or "kubernetes.io/" in name


def _is_huge_page(name: str) -> bool:
    return name.startswith("hugepages-")


def check_port(port: Any, field: str) -> list[StatusCause]:
    """Check a port by number or by name."""
    if isinstance(port, str):
        return names.check(names.port_name, port, field)
    if not 1 <= port <= _PORT_MAX:
        return [errors.invalid(field, port, f"must be between 1 and {_PORT_MAX}, inclusive")]
    return []


_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def check_effect(effect: str, field: str) -> list[StatusCause]:
    """Check the effect of a taint or toleration that has one."""
    if not effect or effect in _EFFECTS:
        return []
    return [errors.not_supported(field, effect, _EFFECTS, is_sorted=True)]


NO_ADDRESS = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"


def check_ip(text: str, field: str) -> list[StatusCause]:
    """Check an address."""
    return [] if is_ip(text) else [errors.invalid(field, text, NO_ADDRESS)]


def is_extended(name: str) -> bool:
    """Return whether a resource is counted in whole units and never overcommitted (not one of Kubernetes' own)."""
    prefix, slash, _ = name.rpartition("/")
    return (
        bool(slash)
        and not (prefix == "kubernetes.io" or prefix.endswith(".kubernetes.io"))
        and "requests." not in name
    )


def check_int_or_percent(value: Any, field: str) -> list[StatusCause]:
    """Check a number that is not negative, or text like `25%`."""
    if isinstance(value, str):
        if not _PERCENT.fullmatch(value):
            detail = (
                "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', "
                "regex used for validation is '[0-9]+%')"
            )
            return [errors.invalid(field, value, detail)]
        return []
    if value < 0:
        return [errors.invalid(field, value, "must be greater than or equal to 0")]
    return []


def percent_of(value: Any) -> int | None:
    """25 for `25%`; None when the value is a number."""
    return int(value[:-1]) if isinstance(value, str) and _PERCENT.fullmatch(value) else None


def is_zero(value: Any) -> bool:
    """Return whether an int-or-percent is 0 or `0%`."""
    return value == 0 if isinstance(value, int) else percent_of(value) == 0


def check_kept(new: Any, old: Any, field: str, detail: str = "field is immutable") -> list[StatusCause]:
    """Trouble when a value that must not change did."""
    return [errors.invalid(field, new, detail)] if tidy(new) != tidy(old) else []


def keeps(path: str, zero: Any = None) -> Callable[[Json, Json], list[StatusCause]]:
    """Return the check of an update that must not change what stands at a path; `zero` is shown for nothing."""

    def value_of(obj: Any) -> Any:
        for name in path.split("."):
            obj = (obj or {}).get(name)
        return obj

    return lambda obj, old: check_kept(value_of(obj) or zero, value_of(old) or zero, path)


def tidy(value: Any) -> Any:
    """Return a value without what Go cannot tell from absence (empty lists and objects, false, "", 0 below)."""
    if isinstance(value, dict):
        parts = {key: tidy(item) for key, item in value.items()}
        return {
            key: item for key, item in parts.items() if item not in ({}, [], None, "") and item is not False
        }
    if isinstance(value, list):
        return [tidy(item) for item in value]
    return value


def fixed(spec: Json, mutable: Collection[str]) -> Any:
    """Return what of a spec may not change, tidied."""
    return tidy({key: value for key, value in spec.items() if key not in mutable})


def check_unique(items: Iterable[tuple[str, Any]]) -> list[StatusCause]:
    """Trouble for every (path, value) whose value came before."""
    seen: set[Any] = set()
    causes: list[StatusCause] = []
    for path, value in items:
        if value in seen:
            causes.append(errors.duplicate(path, value))
        seen.add(value)
    return causes
