"""Checks of CustomResourceDefinitions, and the resources that they serve.

Where all versions have the same schema, columns or subresources, the API server names them in its errors as if they
stood in `spec` itself (`spec.validation.openAPIV3Schema`).
"""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from koordinator.api.meta import Resource
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names
from koordinator.local.schema.builtin import models
from koordinator.local.schema.custom import open_api, rules
from koordinator.local.schema.decode import Undecodable, decoder_of

Json = dict[str, Any]

APPROVAL = "api-approved.kubernetes.io"
_PROTECTED = ("k8s.io", "kubernetes.io")
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
_COLUMN_FORMATS = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
SELECTABLE_MAX, WARNING_MAX = 8, 256


def check(crd: Json) -> list[StatusCause]:
    """Return why a definition (decoded and defaulted) cannot be served."""
    spec, meta = crd.get("spec") or {}, crd.get("metadata") or {}
    group = spec.get("group", "")
    plural = (spec.get("names") or {}).get("plural", "")
    causes: list[StatusCause] = []
    if meta.get("name") and meta["name"] != f"{plural}.{group}":
        causes.append(
            errors.invalid("metadata.name", meta["name"], 'must be spec.names.plural+"."+spec.group')
        )
    causes += _check_group(group, meta.get("annotations") or {})
    causes += _check_names(spec.get("names") or {})
    causes += _check_versions(spec.get("versions") or [])
    causes += _check_conversion(spec.get("conversion") or {})
    if spec.get("preserveUnknownFields"):
        detail = "cannot be true; set x-kubernetes-preserve-unknown-fields in the schema instead"
        causes.append(errors.invalid("spec.preserveUnknownFields", True, detail))
    known = {version.get("name") for version in spec.get("versions") or ()}
    for index, version in enumerate((crd.get("status") or {}).get("storedVersions") or ()):
        if version not in known:
            causes.append(errors.invalid(f"status.storedVersions[{index}]", version, _gone(version)))
    return causes


def _gone(version: str) -> str:
    return (
        f"missing from spec.versions; {version} was previously a storage version, and must remain in spec.versions "
        f"until a storage migration ensures no data remains persisted in {version} and removes {version} from "
        "status.storedVersions"
    )


def _check_conversion(conversion: Json) -> list[StatusCause]:
    if conversion.get("strategy") == "Webhook":
        detail = "conversion webhooks are not supported by this API server: all versions are served as stored"
        return [errors.forbidden("spec.conversion.strategy", detail)]
    webhook, detail = conversion.get("webhook") or {}, "should not be set when strategy is not set to Webhook"
    named = (
        ("webhookClientConfig", "clientConfig"),
        ("conversionReviewVersions", "conversionReviewVersions"),
    )
    return [errors.forbidden(f"spec.conversion.{name}", detail) for name, part in named if webhook.get(part)]


def _check_group(group: str, annotations: Json) -> list[StatusCause]:
    if not group:
        return []  # the required-field rule has said so
    if causes := names.check(names.subdomain_1123, group, "spec.group"):
        return causes
    if "." not in group:
        return [errors.invalid("spec.group", group, "should be a domain with at least one dot")]
    if not any(group == suffix or group.endswith(f".{suffix}") for suffix in _PROTECTED):
        return []
    field, approval = f"metadata.annotations[{APPROVAL}]", annotations.get(APPROVAL, "")
    more = "see https://github.com/kubernetes/enhancements/pull/1111"
    if not approval:
        return [
            errors.required(field, f'protected groups must have approval annotation "{APPROVAL}", {more}')
        ]
    if approval.startswith("unapproved"):
        return []
    parts = urlsplit(approval)
    if not (parts.scheme and parts.netloc):
        detail = (
            f'protected groups must have approval annotation "{APPROVAL}" with either a URL or a reason starting '
            f'with "unapproved", {more}'
        )
        return [errors.invalid(field, approval, detail)]
    return []


def _check_names(spec: Json) -> list[StatusCause]:
    causes: list[StatusCause] = []
    for name in ("plural", "singular", "kind", "listKind"):
        value = spec.get(name, "")
        if not value:
            causes.append(errors.required(f"spec.names.{name}"))
            continue
        mixed = name in {"kind", "listKind"}
        reason = names.label_1035(value.lower() if mixed else value)
        if reason:
            reason = f"may have mixed case, but should otherwise match: {reason}" if mixed else reason
            causes.append(errors.invalid(f"spec.names.{name}", value, reason))
    for part in ("shortNames", "categories"):
        for index, value in enumerate(spec.get(part) or ()):
            causes += names.check(names.label_1035, value, f"spec.names.{part}[{index}]")
    if spec.get("kind") and spec.get("kind") == spec.get("listKind"):
        causes.append(
            errors.invalid("spec.names.listKind", spec["listKind"], "kind and listKind may not be the same")
        )
    return causes


def _check_versions(versions: list[Json]) -> list[StatusCause]:
    causes: list[StatusCause] = []
    if not versions:
        detail = "must have at least one version"
        return [errors.invalid("spec.versions", [], detail)]
    listed = [version.get("name", "") for version in versions]
    if len(set(listed)) < len(listed):
        causes.append(errors.invalid("spec.versions", listed, "must contain unique version names"))
    if sum(bool(version.get("storage")) for version in versions) != 1:
        detail = "must have exactly one version marked as storage version"
        causes.append(errors.invalid("spec.versions", listed, detail))
    for index, version in enumerate(versions):
        causes += _check_version(version, f"spec.versions[{index}]", len(versions))
    lifted = {part for part in _LIFTED if _is_lifted(part, versions)}
    for index, version in enumerate(versions):
        field = f"spec.versions[{index}]"
        for part in _LIFTED:
            if part not in lifted:
                causes += _PARTS[part](version, f"{field}.{part}")
    for part in _LIFTED:
        if part == "selectableFields" and part in lifted and "schema" not in lifted:
            detail = "may only be set when validations.schema is included"
            causes.append(errors.invalid("spec.selectableFields", "", detail))
        elif part in lifted:
            causes += _PARTS[part](versions[0], f"spec.{_LIFTED[part]}")
    return causes


_LIFTED = {
    "schema": "validation",
    "subresources": "subresources",
    "additionalPrinterColumns": "additionalPrinterColumns",
    "selectableFields": "selectableFields",
}
"""Parts of versions, and their names in `spec`."""


def _is_lifted(part: str, versions: list[Json]) -> bool:
    first = versions[0].get(part)
    return bool(first or (part == "subresources" and first is not None)) and all(
        version.get(part) == first for version in versions
    )


def _check_version(version: Json, field: str, count: int) -> list[StatusCause]:
    name = version.get("name", "")
    causes = names.check_given(names.label_1035, name, f"{field}.name")
    if causes and count == 1:
        causes += names.check_given(names.label_1035, name, "spec.version")
    warning = version.get("deprecationWarning")
    where = f"{field}.deprecationWarning"
    if warning is not None and not version.get("deprecated"):
        causes.append(errors.invalid(where, warning, "can only be set for deprecated versions"))
    elif warning is not None:
        if len(warning.encode()) > WARNING_MAX:
            causes.append(errors.invalid(where, warning, f"must be <= {WARNING_MAX} characters long"))
        if not warning:
            causes.append(errors.invalid(where, warning, "must not be an empty string"))
    if (version.get("schema") or {}).get("openAPIV3Schema") is None:
        causes.append(errors.required(f"{field}.schema.openAPIV3Schema"))
    return causes


def _check_schema(version: Json, field: str) -> list[StatusCause]:
    schema, where = (version.get("schema") or {}).get("openAPIV3Schema"), f"{field}.openAPIV3Schema"
    if schema is None:
        return []
    has_status = (version.get("subresources") or {}).get("status") is not None
    return _readable(schema, where) or open_api.check(schema, where, has_status=has_status)


def _check_subresources(version: Json, field: str) -> list[StatusCause]:
    scale = (version.get("subresources") or {}).get("scale")
    if scale is None:
        return []
    causes: list[StatusCause] = []
    for part, roots, said in (
        ("specReplicasPath", (".spec.",), "should be a json path under .spec"),
        ("statusReplicasPath", (".status.",), "should be a json path under .status"),
        ("labelSelectorPath", (".spec.", ".status."), "should be a json path under either .spec or .status"),
    ):
        path = scale.get(part) or ""
        if path and not path.startswith("."):
            detail = "must be a simple json path starting with ."
            causes.append(errors.invalid(f"{field}.scale.{part}", path, detail))
        elif path and not path.startswith(roots):
            causes.append(errors.invalid(f"{field}.scale.{part}", path, said))
        elif not path and part != "labelSelectorPath":
            causes.append(errors.required(f"{field}.scale.{part}"))
    return causes


def _check_columns(version: Json, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    for index, column in enumerate(version.get("additionalPrinterColumns") or ()):
        inside, path = f"{field}[{index}]", column.get("jsonPath") or ""
        if not column.get("name"):
            causes.append(errors.required(f"{inside}.name"))
        for part, allowed in (("type", _COLUMN_TYPES), ("format", _COLUMN_FORMATS)):
            value, detail = column.get(part), f"must be one of {','.join(allowed)}"
            if value and value not in allowed:
                causes.append(errors.invalid(f"{inside}.{part}", value, detail))
            elif not value and part == "type":
                causes.append(errors.required(f"{inside}.type", detail))
        if not path:
            causes.append(errors.required(f"{inside}.JSONPath"))
        elif not path.startswith("."):
            detail = "must be a simple json path starting with ."
            causes.append(errors.invalid(f"{inside}.JSONPath", path, detail))
    return causes


def _check_selectable(version: Json, field: str) -> list[StatusCause]:
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    fields = version.get("selectableFields") or ()
    if not fields or not isinstance(schema, dict):
        return []
    causes: list[StatusCause] = []
    seen: set[str] = set()
    for index, each in enumerate(fields):
        path, where = each.get("jsonPath") or "", f"{field}[{index}].jsonPath"
        found = rules.field_at(schema, path, takes_brackets=False)
        if not path:
            causes.append(errors.required(where))
            continue
        if isinstance(found, str):
            causes.append(errors.invalid(where, path, f"is an invalid path: {found}"))
            continue
        if path.startswith(".metadata."):
            causes.append(errors.invalid(where, path, "must not point to fields in metadata"))
        if found.get("type") not in ("string", "boolean", "integer"):
            detail = (
                "must point to a field of type string, boolean or integer. Enum string fields and strings with formats "
                "are allowed."
            )
            causes.append(errors.invalid(where, path, detail))
        if path in seen:
            causes.append(errors.duplicate(where, path))
        seen.add(path)
    if len(seen) > SELECTABLE_MAX:
        causes.append(errors.too_many(field, len(seen), SELECTABLE_MAX))
    return causes


_PARTS: dict[str, Callable[[Json, str], list[StatusCause]]] = {
    "schema": _check_schema,
    "subresources": _check_subresources,
    "additionalPrinterColumns": _check_columns,
    "selectableFields": _check_selectable,
}


def _readable(schema: Any, field: str) -> list[StatusCause]:
    """Wrong types in schemas that stand where Go's type is open (`additionalProperties`)."""
    if not isinstance(schema, dict):
        return [errors.invalid(field, schema, "must be a schema")]
    more = schema.get("additionalProperties")
    below = [(more, f"{field}.additionalProperties")] if isinstance(more, dict) else []
    for name, inner in (schema.get("properties") or {}).items():
        below.append((inner, f"{field}.properties[{name}]"))
    if isinstance(schema.get("items"), dict):
        below.append((schema["items"], f"{field}.items"))
    causes: list[StatusCause] = []
    for inner, where in below:
        try:
            decoder_of(models.struct_of("V1JSONSchemaProps"))(inner, [])
        except Undecodable as error:
            causes.append(errors.invalid(where, inner, str(error)))
            continue
        causes += _readable(inner, where)
    return causes


def scale_of(crd: Json, version: str) -> Json | None:
    """Return the paths of a version's scale subresource, if it has one."""
    versions = (crd.get("spec") or {}).get("versions") or ()
    found: Json = next((each for each in versions if each.get("name") == version), {})
    scale: Json | None = (found.get("subresources") or {}).get("scale")
    return scale


def resources_of(crd: Json) -> list[tuple[Resource, Json]]:
    """Return the served versions of a definition, each with its schema; names that are missing are empty."""
    spec = crd.get("spec") or {}
    named = spec.get("names") or {}
    found: list[tuple[Resource, Json]] = []
    for version in spec.get("versions") or ():
        if not version.get("served"):
            continue
        subresources = version.get("subresources") or {}
        resource = Resource(
            group=spec.get("group", ""),
            version=version.get("name", ""),
            kind=named.get("kind", ""),
            plural=named.get("plural", ""),
            namespaced=spec.get("scope") == "Namespaced",
            short_names=tuple(named.get("shortNames") or ()),
            categories=tuple(named.get("categories") or ()),
            subresources=tuple(name for name in ("status", "scale") if name in subresources),
        )
        found.append((resource, (version.get("schema") or {}).get("openAPIV3Schema") or {}))
    return found
