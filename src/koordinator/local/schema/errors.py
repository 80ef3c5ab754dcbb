"""The API server's words for what is wrong with a field, and for the whole answer.

`StatusCause` holds one field's trouble; `invalid_object` composes the 422 answer of them. Everything that
refuses an object uses these helpers, so that `kubectl` and scripts that match its output meet the same texts.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.cluster.errors import BadRequest, Invalid, StatusCause, StatusDetails

STRICT, IGNORE = "Strict", "Ignore"  # `fieldValidation`
CAUSES_MAX = 1_000
"""Told of one object. A request of 3 MB can have 200,000, and they would take 100 MB."""


def required(field: str, detail: str = "") -> StatusCause:
    """`spec.containers: Required value`."""
    return _cause("FieldValueRequired", field, f"Required value: {detail}" if detail else "Required value")


def invalid(field: str, value: Any, detail: str) -> StatusCause:
    """`spec.replicas: Invalid value: -1: must be greater than or equal to 0`."""
    return _cause("FieldValueInvalid", field, f"Invalid value: {shown(value)}: {detail}")


def invalid_whole(field: str, detail: str) -> StatusCause:
    """`spec.rules[0]: Invalid value: one of ... is required`: an object whose members do not go together."""
    return _cause("FieldValueInvalid", field, f"Invalid value: {detail}")


def type_invalid(field: str, value: Any, detail: str) -> StatusCause:
    """Return a value of the wrong JSON type in a custom resource."""
    return _cause("FieldValueTypeInvalid", field, f"Invalid value: {shown(value)}: {detail}")


def not_supported(
    field: str, value: Any, supported: Iterable[str], *, is_sorted: bool = False
) -> StatusCause:
    """`spec.restartPolicy: Unsupported value: "x": supported values: "Always", "Never"`.

    `is_sorted`: the values stand in the API server's own order.
    """
    values = ", ".join(shown(item) for item in (supported if is_sorted else sorted(supported)))
    return _cause(
        "FieldValueNotSupported", field, f"Unsupported value: {shown(value)}: supported values: {values}"
    )


def forbidden(field: str, detail: str) -> StatusCause:
    """`spec: Forbidden: pod updates may not change fields other than ...`."""
    return _cause("FieldValueForbidden", field, f"Forbidden: {detail}")


def duplicate(field: str, value: Any) -> StatusCause:
    """`spec.containers[1].name: Duplicate value: "web"`."""
    return _cause("FieldValueDuplicate", field, f"Duplicate value: {shown(value)}")


def not_found(field: str, value: Any) -> StatusCause:
    """`spec.containers[0].volumeMounts[0].name: Not found: "data"`."""
    return _cause("FieldValueNotFound", field, f"Not found: {shown(value)}")


def too_long(field: str, limit_bytes: int) -> StatusCause:
    """`metadata.annotations: Too long: may not be more than 262144 bytes`."""
    return _cause(
        "FieldValueTooLong", field, f"Too long: may not be more than {_counted(limit_bytes, 'byte')}"
    )


def too_many(field: str, count: int, limit: int) -> StatusCause:
    """`spec.x: Too many: 3: must have at most 2 items`."""
    return _cause(
        "FieldValueTooMany", field, f"Too many: {count}: must have at most {_counted(limit, 'item')}"
    )


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _cause(reason: str, field: str, message: str) -> StatusCause:
    return StatusCause(reason=reason, message=message, field=field)


def shown(value: Any) -> str:
    """Return a value as the API server quotes it: JSON, with text in double quotes."""
    text = msgspec.json.encode(value).decode()
    return text.translate(_HTML) if isinstance(value, dict | list) else text


_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
"""Go escapes these in the JSON of anything but a text."""


def invalid_object(resource: Resource, name: str, causes: Sequence[StatusCause]) -> Invalid:
    """Return the 422 answer: `Deployment.apps "x" is invalid: [a: Required value, b: Invalid value: ...]`."""
    return invalid_kind(resource.group, resource.kind, name, causes)


def invalid_kind(group: str, kind: str, name: str, causes: Sequence[StatusCause]) -> Invalid:
    """Return the same for what has no `Resource` (options of a request)."""
    shown, more = causes[:CAUSES_MAX], len(causes) - CAUSES_MAX
    texts = list(dict.fromkeys(f"{cause.field}: {cause.message}" for cause in shown))
    if more > 0:
        texts.append(f"and {more} more")
    what = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    qualified = f"{kind}.{group}" if group else kind
    return Invalid(
        f'{qualified} "{name}" is invalid: {what}',
        details=StatusDetails(name=name, group=group, kind=kind, causes=list(shown)),
    )


def invalid_options(kind: str, cause: StatusCause) -> Invalid:
    """Return the 422 answer for an option of a request; `kind` is that of the options, e.g. `ListOptions`."""
    return invalid_kind("meta.k8s.io", kind, "", [cause])


def invalid_patch(value: Any, reason: str) -> Invalid:
    """Return the 422 answer when a patch makes an object that cannot be decoded: the registry turns the BadRequest
    of `BuiltinSchema.decode` (its text after `: `) into this one for patches.

    `value` is what the answer shows: the text of a strategic merge patch (`go_text`), else the JSON of the
    patched object.
    """
    return invalid_kind("", "", "", [invalid("patch", value, reason)])


def go_text(value: Any) -> str:
    """Return a JSON value as Go prints it: `map[spec:map[replicas:x]]`."""
    match value:
        case dict():
            return f"map[{' '.join(f'{key}:{go_text(value[key])}' for key in sorted(value))}]"
        case list():
            return f"[{' '.join(map(go_text, value))}]"
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
    return str(value)


def unreadable(resource: Resource, reason: str) -> BadRequest:
    """`Deployment in version "v1" cannot be handled as a Deployment: json: cannot unmarshal ...`."""
    return BadRequest(
        f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {reason}'
    )


def warnings_of(resource: Resource, unknown: Sequence[str], field_validation: str) -> list[str]:
    """Return the warnings for unknown fields. Raises: BadRequest in Strict mode."""
    if field_validation == IGNORE:
        return []
    told = [f'unknown field "{path}"' for path in unknown]
    if field_validation == STRICT:
        raise unreadable(resource, f"strict decoding error: {', '.join(told)}")
    return told
