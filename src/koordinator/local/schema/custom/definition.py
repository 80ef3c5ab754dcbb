"""Checks of CustomResourceDefinitions, and the resources that they serve: among others, whether an `openAPIV3Schema` is
structural and uses only what the API server accepts."""

from typing import Any
from urllib.parse import urlsplit

from koordinator.api.meta import Resource
from koordinator.cel import EvaluationError, patterns
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names
from koordinator.local.schema.builtin import models
from koordinator.local.schema.custom import rules, validate
from koordinator.local.schema.custom.schema import compile_pruner
from koordinator.local.schema.decode import Undecodable, decoder_of

Json = dict[str, Any]

_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_FORBIDDEN = {
    "$ref": "$ref is not supported",
    "definitions": "definitions is not supported",
    "dependencies": "dependencies is not supported",
    "patternProperties": "patternProperties is not supported",
    "additionalItems": "additionalItems is not supported",
    "id": "id is not supported",
}
_OUTSIDE_ONLY = (
    "description",
    "type",
    "default",
    "additionalProperties",
    "nullable",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-list-map-keys",
)
_INT_OR_STRING_TYPES = ({"integer"}, {"string"})


def check_structural(schema: Json, field: str) -> list[StatusCause]:
    """Return why a schema cannot be served; `field` is its path in the definition."""
    causes: list[StatusCause] = []
    if schema.get("type") != "object":
        if not schema.get("type"):
            causes.append(errors.required(f"{field}.type", "must not be empty at the root"))
        else:
            causes.append(errors.invalid(f"{field}.type", schema["type"], "must be object at the root"))
    if schema.get("nullable"):
        causes.append(errors.forbidden(f"{field}.nullable", "nullable cannot be true at the root"))
    meta = (schema.get("properties") or {}).get("metadata")
    if isinstance(meta, dict):
        allowed = {"type", "properties", "description"}
        inner = set(meta.get("properties") or ())
        if set(meta) - allowed or inner - {"name", "generateName"}:
            detail = "must not specify anything other than name and generateName, but metadata is implicitly specified"
            causes.append(errors.forbidden(f"{field}.properties[metadata]", detail))
    return causes + _node(schema, field, "root")


def _node(schema: Any, field: str, role: str) -> list[StatusCause]:
    """One node outside of logical junctors; `role` says where it stands."""
    if not isinstance(schema, dict):
        return [errors.invalid(field, schema, "must be a schema")]
    causes = _check_common(schema, field)
    open_type = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if not schema.get("type") and not open_type and role != "root":
        what = "array items" if role == "items" else "object fields"
        causes.append(errors.required(f"{field}.type", f"must not be empty for specified {what}"))
    if schema.get("type") and schema.get("x-kubernetes-int-or-string"):
        detail = "must be empty if x-kubernetes-int-or-string is true"
        causes.append(errors.invalid(f"{field}.type", schema["type"], detail))
    if schema.get("x-kubernetes-embedded-resource") and schema.get("type") != "object":
        detail = "must be object if x-kubernetes-embedded-resource is true"
        causes.append(errors.invalid(f"{field}.type", schema.get("type", ""), detail))
    if schema.get("x-kubernetes-preserve-unknown-fields") is False:
        detail = "must be true or undefined"
        causes.append(errors.invalid(f"{field}.x-kubernetes-preserve-unknown-fields", False, detail))
    causes += _check_list(schema, field)
    for name, inner in (schema.get("properties") or {}).items():
        causes += _node(inner, f"{field}.properties[{name}]", "property")
    more = schema.get("additionalProperties")
    if more is False:
        causes.append(
            errors.forbidden(f"{field}.additionalProperties", "additionalProperties cannot be set to false")
        )
    elif more is not None:
        if schema.get("properties"):
            detail = "additionalProperties and properties are mutual exclusive"
            causes.append(errors.forbidden(f"{field}.additionalProperties", detail))
        if isinstance(more, dict):
            causes += _node(more, f"{field}.additionalProperties", "property")
        elif more is not True:
            causes.append(errors.invalid(f"{field}.additionalProperties", more, "must be a schema or true"))
    if "items" in schema:
        causes += _node(schema["items"], f"{field}.items", "items")
    elif schema.get("type") == "array":
        causes.append(errors.required(f"{field}.items", "must be specified"))
    causes += _check_junctors(schema, schema, field)
    if not causes:
        causes += _check_default(schema, field)
    return causes


def _check_common(schema: Json, field: str) -> list[StatusCause]:
    """Check what holds inside and outside of junctors."""
    causes = [
        errors.forbidden(f"{field}.{name}", text) for name, text in _FORBIDDEN.items() if schema.get(name)
    ]
    kind = schema.get("type")
    if kind and kind not in _TYPES:
        causes.append(errors.not_supported(f"{field}.type", kind, _TYPES))
    if schema.get("uniqueItems"):
        detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        causes.append(errors.forbidden(f"{field}.uniqueItems", detail))
    pattern = schema.get("pattern")
    if pattern:
        try:
            patterns.of(pattern)
        except EvaluationError as error:
            detail = f"must be a valid regular expression, but isn't: {error}"
            causes.append(errors.invalid(f"{field}.pattern", pattern, detail))
    return causes


def _check_list(schema: Json, field: str) -> list[StatusCause]:
    """List and map types and keys."""
    causes: list[StatusCause] = []
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys") or []
    where = f"{field}.x-kubernetes-list-type"
    if kind is not None and kind not in {"atomic", "set", "map"}:
        return [errors.not_supported(where, kind, ["atomic", "set", "map"])]
    if kind is not None and schema.get("type") != "array":
        detail = "must be array if x-kubernetes-list-type is specified"
        causes.append(errors.invalid(f"{field}.type", schema.get("type", ""), detail))
    map_type = schema.get("x-kubernetes-map-type")
    if map_type is not None and map_type not in {"atomic", "granular"}:
        causes.append(
            errors.not_supported(f"{field}.x-kubernetes-map-type", map_type, ["atomic", "granular"])
        )
    if keys and kind != "map":
        detail = "must be map if x-kubernetes-list-map-keys is non-empty"
        causes.append(errors.invalid(where, kind, detail))
    if kind != "map":
        return causes
    if not keys:
        detail = "must not be empty if x-kubernetes-list-type is map"
        causes.append(errors.required(f"{field}.x-kubernetes-list-map-keys", detail))
    items = schema.get("items")
    if not isinstance(items, dict):
        detail = "must have a schema if x-kubernetes-list-type is map"
        return [*causes, errors.required(f"{field}.items", detail)]
    if items.get("type") != "object":
        detail = "must be object if parent array's x-kubernetes-list-type is map"
        causes.append(errors.invalid(f"{field}.items.type", items.get("type", ""), detail))
    properties = items.get("properties") or {}
    for index, key in enumerate(keys):
        inner = properties.get(key)
        if not isinstance(inner, dict):
            detail = "entries must all be names of item properties"
            causes.append(errors.invalid(f"{field}.x-kubernetes-list-map-keys[{index}]", key, detail))
        elif key not in (items.get("required") or ()) and "default" not in inner:
            detail = (
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required "
                "property"
            )
            causes.append(errors.required(f"{field}.items.properties[{key}].default", detail))
    if len(set(keys)) < len(keys):
        causes.append(errors.duplicate(f"{field}.x-kubernetes-list-map-keys", keys))
    return causes


def _check_junctors(schema: Json, outer: Json, field: str) -> list[StatusCause]:
    """Check the junctors of a schema; `outer` is what stands outside of all of them."""
    causes: list[StatusCause] = []
    for name in ("allOf", "anyOf", "oneOf"):
        for index, inner in enumerate(schema.get(name) or ()):
            causes += _inside(inner, outer, f"{field}.{name}[{index}]", name)
    if "not" in schema:
        causes += _inside(schema["not"], outer, f"{field}.not", "not")
    return causes


def _inside(inner: Any, outer: Any, field: str, junctor: str) -> list[StatusCause]:
    """Check a schema inside a junctor: values only, and only of fields that the outside names."""
    if not isinstance(inner, dict):
        return [errors.invalid(field, inner, "must be a schema")]
    causes = _check_common(inner, field)
    outer = outer if isinstance(outer, dict) else {}
    for name in _OUTSIDE_ONLY:
        if name not in inner:
            continue
        by_type = name == "type" and outer.get("x-kubernetes-int-or-string")
        if by_type and {inner["type"]} in _INT_OR_STRING_TYPES:
            continue  # the one pattern in which a type inside is allowed
        causes.append(errors.forbidden(f"{field}.{name}", "must be empty to be structural"))
    known = outer.get("properties") or {}
    for name, below in (inner.get("properties") or {}).items():
        if name not in known and not isinstance(outer.get("additionalProperties"), dict):
            where = f"{field.split('.' + junctor)[0]}.properties[{name}]"
            causes.append(errors.required(where, f"because it is defined in {field}.properties[{name}]"))
            continue
        causes += _inside(below, known.get(name), f"{field}.properties[{name}]", junctor)
    if "items" in inner:
        causes += _inside(inner["items"], outer.get("items"), f"{field}.items", junctor)
    return causes + _check_junctors(inner, outer, field)


def _check_default(schema: Json, field: str) -> list[StatusCause]:
    """Check that a default must be a good value without unknown fields."""
    if "default" not in schema:
        return []
    value = schema["default"]
    causes = validate.causes_of(validate.compile_schema(schema), value, f"{field}.default")
    unknown: list[str] = []
    compile_pruner(schema)(value, unknown)
    return causes + [
        errors.invalid(f"{field}.default", value, f"must not have unknown fields: {path}") for path in unknown
    ]


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
        causes += _check_version(version, f"spec.versions[{index}]")
    return causes


def _check_version(version: Json, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    name = version.get("name", "")
    causes += names.check_given(names.label_1035, name, f"{field}.name")
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    where = f"{field}.schema.openAPIV3Schema"
    if schema is None:
        causes.append(errors.required(where, "schemas are required"))
    else:
        causes += _readable(schema, where) or check_structural(schema, where) or rules.check(schema, where)
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
