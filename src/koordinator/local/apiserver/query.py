"""Read query parameters and option bodies as the API server does: parsed and checked."""

from collections.abc import Callable, Mapping
from typing import Any

from koordinator.cluster import errors
from koordinator.cluster.backend import DeleteRequest, ListOptions, WriteOptions
from koordinator.cluster.delegated_auth import User
from koordinator.local.schema import errors as fields
from koordinator.local.schema.decode import word_of

_INT64_MAX = 2**63 - 1
_FIELD_VALIDATION = ("", "Ignore", "Strict", "Warn")
_PROPAGATION = ("Foreground", "Background", "Orphan")
_FIELD_MANAGER_BYTES_MAX = 128


def boolean(query: Mapping[str, str], key: str) -> bool | None:
    """Return a boolean parameter as Go's conversion reads it: present and not `false` or `0` is true."""
    if key not in query:
        return None
    return query[key].lower() not in ("false", "0")


def integer(query: Mapping[str, str], key: str) -> int:
    """Return a whole number, 0 when absent or empty. Raises: BadRequest with the parser's words."""
    text = query.get(key, "")
    if not text:
        return 0
    unsigned = text[1:] if text[0] in "+-" else text
    if not (unsigned.isascii() and unsigned.isdigit()):
        raise errors.BadRequest(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    if len(unsigned) > 19 or abs(int(text)) > _INT64_MAX:
        raise errors.BadRequest(f'strconv.ParseInt: parsing "{text}": value out of range')
    return int(text)


def list_options(query: Mapping[str, str]) -> ListOptions:
    """Options of a list or watch; which of them go together is for the backend to say. Raises: BadRequest."""
    return ListOptions(
        label_selector=query.get("labelSelector", ""),
        field_selector=query.get("fieldSelector", ""),
        limit=max(0, integer(query, "limit")),
        continue_token=query.get("continue", ""),
        resource_version=query.get("resourceVersion", ""),
        resource_version_match=query.get("resourceVersionMatch", ""),
        send_initial_events=boolean(query, "sendInitialEvents"),
        allow_bookmarks=bool(boolean(query, "allowWatchBookmarks")),
    )


def write_options(
    query: Mapping[str, str], user: User, kind: str, user_agent: str, warn: Callable[[str], None]
) -> WriteOptions:
    """Options of a create, update or patch; `kind` is CreateOptions, UpdateOptions or PatchOptions.

    Without `fieldManager` the client's program name is taken, as the API server does.
    Raises: Invalid.
    """
    if not query:
        manager = _program_name(user_agent)
        return WriteOptions(field_manager=manager, warn=warn, user=user.name, groups=user.groups)
    validation = query.get("fieldValidation", "")
    if validation not in _FIELD_VALIDATION:
        raise fields.invalid_options(
            kind, fields.not_supported("fieldValidation", validation, _FIELD_VALIDATION)
        )
    manager = query.get("fieldManager", "")
    if len(manager.encode(errors="replace")) > _FIELD_MANAGER_BYTES_MAX:
        raise fields.invalid_options(kind, fields.too_long("fieldManager", _FIELD_MANAGER_BYTES_MAX))
    if not manager.isprintable():
        why = "should only contain printable characters"
        raise fields.invalid_options(kind, fields.invalid("fieldManager", manager, why))
    return WriteOptions(
        dry_run=_dry_run(query.get("dryRun"), kind),
        field_manager=manager or _program_name(user_agent),
        field_validation=validation,
        force=bool(boolean(query, "force")),
        warn=warn,
        user=user.name,
        groups=user.groups,
    )


def check_apply(query: Mapping[str, str], *, apply: bool) -> None:
    """Check the rules of PatchOptions that depend on the patch type."""
    if apply and not query.get("fieldManager"):
        raise fields.invalid_options(
            "PatchOptions", fields.required("fieldManager", "is required for apply patch")
        )
    if not apply and "force" in query:
        why = "may not be specified for non-apply patch"
        raise fields.invalid_options("PatchOptions", fields.forbidden("force", why))


def delete_options(query: Mapping[str, str], body: Any, user: User) -> DeleteRequest:
    """Options of a delete: the body when there is one, else the query. Raises: BadRequest, Invalid."""
    if body is None:
        body = {
            "gracePeriodSeconds": integer(query, "gracePeriodSeconds")
            if query.get("gracePeriodSeconds")
            else None,
            "propagationPolicy": query.get("propagationPolicy"),
            "orphanDependents": boolean(query, "orphanDependents"),
        }
        dry_run: Any = query.get("dryRun")
    else:
        dry_run = body.get("dryRun") if isinstance(body, dict) else None
    if not isinstance(body, dict):
        raise errors.BadRequest("json: cannot unmarshal the body into Go value of type v1.DeleteOptions")
    kind = body.get("kind", "DeleteOptions")
    if kind != "DeleteOptions":
        raise errors.BadRequest(f"decoded object cannot be converted to DeleteOptions: it is a {kind}")
    grace = _field(body, "gracePeriodSeconds", int)
    preconditions = _field(body, "preconditions", dict) or {}
    return DeleteRequest(
        grace_period_s=grace,
        propagation=_propagation(body),
        uid=_field(preconditions, "uid", str) or "",
        resource_version=_field(preconditions, "resourceVersion", str) or "",
        dry_run=_dry_run(dry_run, "DeleteOptions"),
        user=user.name,
        groups=user.groups,
    )


def _propagation(body: dict[str, Any]) -> str:
    policy = _field(body, "propagationPolicy", str)
    orphan = _field(body, "orphanDependents", bool)
    if policy and orphan is not None:
        why = "orphanDependents and deletionPropagation cannot be both set"
        raise fields.invalid_options("DeleteOptions", fields.invalid("propagationPolicy", policy, why))
    if policy and policy not in _PROPAGATION:
        supported = (*_PROPAGATION, "nil")
        trouble = fields.not_supported("propagationPolicy", policy, supported, is_sorted=True)
        raise fields.invalid_options("DeleteOptions", trouble)
    if orphan is not None:
        return "Orphan" if orphan else "Background"
    return policy or ""


def _dry_run(value: Any, kind: str) -> bool:
    values = [value] if isinstance(value, str) else value
    if not values:
        return False
    if values != ["All"]:
        raise fields.invalid_options(kind, fields.not_supported("dryRun", values, ("All",)))
    return True


def _field(body: dict[str, Any], name: str, expected: type) -> Any:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        raise errors.BadRequest(
            f"json: cannot unmarshal {word_of(value)} into Go struct field DeleteOptions.{name} "
            f"of type {_GO[expected]}"
        )
    if isinstance(value, int) and abs(value) > _INT64_MAX:
        raise errors.BadRequest(
            f"json: cannot unmarshal number {value} into Go struct field DeleteOptions.{name} of type int64"
        )
    return value


_GO = {int: "int64", str: "string", bool: "bool", dict: "v1.Preconditions"}


def _program_name(user_agent: str) -> str:
    """Return the printable part of a User-Agent before the first `/`, as far as a field manager may be long."""
    name = user_agent.partition("/")[0]
    if name.isascii() and name.isprintable():
        return name[:_FIELD_MANAGER_BYTES_MAX]
    printable = "".join(filter(str.isprintable, name)).encode()
    return printable[:_FIELD_MANAGER_BYTES_MAX].decode(errors="ignore")
