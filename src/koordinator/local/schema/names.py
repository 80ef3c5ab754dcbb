"""Check names, labels, annotations and the rest of `metadata` that all kinds share, with the API server's texts."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from koordinator.api import label_selector
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors

NameRule = Callable[[str], str]
"""Function that returns why a text cannot be the name of an object; empty when it can."""

_CORE_FINALIZERS = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
_OWNER_FIELDS = ("apiVersion", "kind", "name", "uid")


def check_metadata(
    meta: dict[str, Any], namespaced: bool, rule: NameRule, *, is_core: bool
) -> list[StatusCause]:
    """Return what is wrong with the metadata of an object about to be stored.

    `is_core`: a kind of Kubernetes proper, whose finalizers need a domain and a path; those of CRDs and custom
    resources may be any qualified name.
    """
    causes: list[StatusCause] = []
    prefix = meta.get("generateName", "")
    if prefix:
        # The random end makes a trailing dash fine.
        reason = rule(f"{prefix[:-1]}a" if len(prefix) > 1 and prefix.endswith("-") else prefix)
        if reason:
            causes.append(errors.invalid("metadata.generateName", prefix, reason))
    name = meta.get("name", "")
    if not name:
        causes.append(errors.required("metadata.name", "name or generateName is required"))
    else:
        causes += check(rule, name, "metadata.name")
    causes += _check_namespace(meta.get("namespace", ""), namespaced)
    if "labels" in meta:
        causes += check_labels(meta["labels"], "metadata.labels")
    if "annotations" in meta:
        causes += check_annotations(meta["annotations"], "metadata.annotations")
    if meta.get("ownerReferences"):
        causes += _check_owners(meta["ownerReferences"])
    for index, finalizer in enumerate(meta.get("finalizers") or ()):
        causes += check_finalizer(
            finalizer, "metadata.finalizers", f"metadata.finalizers[{index}]" if is_core else ""
        )
    return causes


def check_finalizer(finalizer: str, field: str, core_field: str) -> list[StatusCause]:
    """Check a finalizer; with `core_field` also by the rule of Kubernetes proper, whose fault is told there."""
    causes = check(qualified_name, finalizer, field)
    if core_field and "/" not in finalizer and finalizer not in _CORE_FINALIZERS:
        why = "name is neither a standard finalizer name nor is it fully qualified"
        causes.append(errors.invalid(core_field, finalizer, why))
    return causes


def _check_namespace(namespace: str, namespaced: bool) -> list[StatusCause]:
    if not namespaced:
        return [errors.forbidden("metadata.namespace", "not allowed on this type")] if namespace else []
    return check_required(label_1123, namespace, "metadata.namespace")


def _check_owners(owners: list[dict[str, Any]]) -> list[StatusCause]:
    causes: list[StatusCause] = []
    controller: dict[str, Any] | None = None
    for owner in owners:
        field = "metadata.ownerReferences"
        for part in _OWNER_FIELDS:
            if not owner.get(part):
                why = "version must not be empty" if part == "apiVersion" else "must not be empty"
                causes.append(errors.invalid(f"{field}.{part}", owner.get(part, ""), why))
        if owner.get("apiVersion") == "v1" and owner.get("kind") == "Event":
            causes.append(errors.invalid(field, owner, "Event is disallowed from being an owner"))
        if owner.get("controller"):
            if controller is not None:
                detail = (
                    'Only one reference can have Controller set to true. Found "true" in references for '
                    f"{controller.get('kind')}/{controller.get('name')} and {owner.get('kind')}/{owner.get('name')}"
                )
                causes.append(errors.invalid("metadata.ownerReferences", owners, detail))
            controller = owner
    return causes


_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL_RE = re.compile(_LABEL)
_LABEL_1035_RE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_ENV_NAME_RE = re.compile(r"[ -<>-~]+")
_CONFIG_KEY_RE = re.compile(r"[-._a-zA-Z0-9]+")
_WILDCARD_RE = re.compile(rf"\*\.{label_selector.SUBDOMAIN}")
_PORT_NAME_RE = re.compile(r"[-a-z0-9]+")
_HTTP_HEADER_RE = re.compile(r"[-A-Za-z0-9]+")
_HTTP_PATH_RE = re.compile(r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+")

ANNOTATIONS_BYTES_MAX = 256 * 1024

LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
LABEL_1035_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)


@functools.lru_cache(maxsize=8192)
def label_1123(text: str) -> str:
    """Return why a text is no DNS-1123 label; empty when it is one."""
    return next(_label_faults(text), "")


def _label_faults(text: str) -> Iterator[str]:
    if len(text) > 63:
        yield "must be no more than 63 characters"
    if not _LABEL_RE.fullmatch(text):
        yield LABEL_TEXT if label_selector.subdomain_fault(text) else "must not contain dots"


@functools.lru_cache(maxsize=8192)
def label_1035(text: str) -> str:
    """Return why a text is no DNS-1035 label (services); empty when it is one."""
    if len(text) > 63:
        return "must be no more than 63 characters"
    return "" if _LABEL_1035_RE.fullmatch(text) else LABEL_1035_TEXT


@functools.lru_cache(maxsize=2048)
def subdomain_1123(text: str) -> str:
    """Return why a text is no DNS-1123 subdomain (most names); empty when it is one."""
    return label_selector.subdomain_fault(text).replace("bytes", "characters")


@functools.lru_cache(maxsize=8192)
def wildcard_subdomain(text: str) -> str:
    """Return a host like `*.example.com`."""
    if _WILDCARD_RE.fullmatch(text):
        return ""
    return (
        "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of "
        "lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', "
        "regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
    )


@functools.lru_cache(maxsize=8192)
def http_header(text: str) -> str:
    """Return why a text is no name of an HTTP header; empty when it is one."""
    if _HTTP_HEADER_RE.fullmatch(text):
        return ""
    return (
        "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for "
        "validation is '[-A-Za-z0-9]+')"
    )


def http_path(text: str) -> str:
    """Return why a text is no path of a URL; empty when it is one."""
    if _HTTP_PATH_RE.fullmatch(text):
        return ""
    return f"Invalid path (regex used for validation is '{_HTTP_PATH_RE.pattern}')"


def path_segment(text: str) -> str:
    """Return why a text cannot be part of a URL path (names of RBAC objects); empty when it can."""
    if text in {".", ".."}:
        return f"may not be '{text}'"
    for mark in ("/", "%"):
        if mark in text:
            return f"may not contain '{mark}'"
    return ""


@functools.lru_cache(maxsize=8192)
def qualified_name(text: str) -> str:
    """Return why a text is no `[prefix/]name` (label and annotation keys, resource names); empty when it is one."""
    return next(iter(label_selector.key_faults(text)), "")


@functools.lru_cache(maxsize=8192)
def label_value(text: str) -> str:
    """Return why a text is no label value; empty when it is one."""
    return next(iter(label_selector.value_faults(text)), "")


@functools.lru_cache(maxsize=8192)
def env_name(text: str) -> str:
    """Return why a text names no environment variable; empty when it does."""
    if _ENV_NAME_RE.fullmatch(text):
        return ""
    return "a valid environment variable name must consist only of printable ASCII characters other than '='"


@functools.lru_cache(maxsize=8192)
def config_key(text: str) -> str:
    """Return why a text is no key of a ConfigMap or Secret; empty when it is one."""
    if len(text) > 253:
        return "must be no more than 253 characters"
    if text in {".", ".."} or text.startswith(".."):
        return f"must not be or start with '{'..' if text != '.' else '.'}'"
    if _CONFIG_KEY_RE.fullmatch(text):
        return ""
    return (
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or "
        "'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
    )


@functools.lru_cache(maxsize=8192)
def port_name(text: str) -> str:
    """Return why a text names no container port; empty when it does."""
    return next(_port_faults(text), "")


def _port_faults(text: str) -> Iterator[str]:
    if len(text) > 15:
        yield "must be no more than 15 characters"
    if not _PORT_NAME_RE.fullmatch(text):
        yield "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
    if not re.search("[a-z]", text):
        yield "must contain at least one letter (a-z)"
    if "--" in text:
        yield "must not contain consecutive hyphens"
    if text.startswith("-") or text.endswith("-"):
        yield "must not begin or end with a hyphen"


_ALL_FAULTS: dict[NameRule, Callable[[str], Iterable[str]]] = {
    label_1123: _label_faults,
    qualified_name: label_selector.key_faults,
    label_value: label_selector.value_faults,
    port_name: _port_faults,
}
"""Rules that can find several faults in one text."""


def faults(rule: NameRule, text: str) -> Iterable[str]:
    """Return all that is wrong with a text by one of the rules above."""
    return _ALL_FAULTS[rule](text) if rule in _ALL_FAULTS else filter(None, (rule(text),))


def check(rule: NameRule, text: str, field: str) -> list[StatusCause]:
    """Return the same, as causes of a refusal."""
    # Nearly all texts are good, and rules remember them.
    return [errors.invalid(field, text, each) for each in faults(rule, text)] if rule(text) else []


def check_given(rule: Callable[[str], str], text: str | None, field: str) -> list[StatusCause]:
    """Return the same, nothing for an empty text."""
    return check(rule, text, field) if text else []


def check_required(rule: Callable[[str], str], text: str, field: str) -> list[StatusCause]:
    """Return the same, and for an empty text that it is required."""
    return check(rule, text, field) if text else [errors.required(field)]


def check_labels(labels: Any, field: str) -> list[StatusCause]:
    """Keys and values of a label map."""
    causes: list[StatusCause] = []
    for key, value in (labels or {}).items():
        causes += check(qualified_name, key, field)
        causes += check(label_value, value, field)
    return causes


def check_annotations(annotations: Any, field: str) -> list[StatusCause]:
    """Keys of an annotation map, and the size of the whole."""
    causes: list[StatusCause] = []
    total = 0
    for key, value in (annotations or {}).items():
        reason = qualified_name(key.lower())
        if reason:
            causes.append(errors.invalid(field, key, reason))
        total += len(key) + len(value)
    if total > ANNOTATIONS_BYTES_MAX // 4:  # text is at most four bytes a character: count exactly only then
        total = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
        if total > ANNOTATIONS_BYTES_MAX:
            causes.append(errors.too_long(field, ANNOTATIONS_BYTES_MAX))
    return causes
