"""Checks of CustomResourceDefinitions, and the resources that they serve."""

from typing import Any
from urllib.parse import urlsplit

from koordinator.api.meta import Resource
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names
from koordinator.local.schema.builtin import models
from koordinator.local.schema.custom import rules, structural
from koordinator.local.schema.decode import Undecodable, decoder_of

Json = dict[str, Any]

APPROVAL = "api-approved.kubernetes.io"
_PROTECTED = ("k8s.io", "kubernetes.io")
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")


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
    if (spec.get("conversion") or {}).get("strategy") == "Webhook":
        detail = "conversion webhooks are not supported by this API server: all versions are served as stored"
        causes.append(errors.forbidden("spec.conversion.strategy", detail))
    if spec.get("preserveUnknownFields"):
        detail = "cannot be true; set x-kubernetes-preserve-unknown-fields in the schema instead"
        causes.append(errors.invalid("spec.preserveUnknownFields", True, detail))
    known = {version.get("name") for version in spec.get("versions") or ()}
    for index, version in enumerate((crd.get("status") or {}).get("storedVersions") or ()):
        if version not in known:
            causes.append(
                errors.invalid(f"status.storedVersions[{index}]", version, "must appear in spec.versions")
            )
    return causes


def _check_group(group: str, annotations: Json) -> list[StatusCause]:
    if not group:
        return []  # the required-field rule has said so
    reason = names.subdomain_1123(group)
    if reason:
        return [errors.invalid("spec.group", group, reason)]
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
            reason = names.label_1035(value)
            if reason:
                causes.append(errors.invalid(f"spec.names.{part}[{index}]", value, reason))
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
        causes += _check_version(version, f"spec.versions[{index}]")
    return causes


def _check_version(version: Json, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    name = version.get("name", "")
    reason = names.label_1035(name) if name else ""
    if reason:
        causes.append(errors.invalid(f"{field}.name", name, reason))
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    where = f"{field}.schema.openAPIV3Schema"
    if schema is None:
        causes.append(errors.required(where, "schemas are required"))
    else:
        causes += _readable(schema, where) or structural.check(schema, where) or rules.check(schema, where)
    scale = (version.get("subresources") or {}).get("scale")
    if scale is not None:
        for part, root in (("specReplicasPath", ".spec"), ("statusReplicasPath", ".status")):
            path = scale.get(part, "")
            if path and not path.startswith(f"{root}."):
                detail = f"should be a json path under {root}"
                causes.append(errors.invalid(f"{field}.subresources.scale.{part}", path, detail))
    for index, column in enumerate(version.get("additionalPrinterColumns") or ()):
        inside = f"{field}.additionalPrinterColumns[{index}]"
        if column.get("type") and column["type"] not in _COLUMN_TYPES:
            detail = f"must be one of {','.join(_COLUMN_TYPES)}"
            causes.append(errors.invalid(f"{inside}.type", column["type"], detail))
        if column.get("jsonPath") and not column["jsonPath"].startswith("."):
            detail = (
                f"is an invalid json path: must start with a dot, like .spec.replicas: {column['jsonPath']}"
            )
            causes.append(errors.invalid(f"{inside}.jsonPath", column["jsonPath"], detail))
    return causes


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


__all__ = ["APPROVAL", "check", "resources_of"]
