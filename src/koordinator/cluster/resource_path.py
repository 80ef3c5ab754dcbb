"""Addresses of the Kubernetes API: what a URL path names."""

import msgspec

from koordinator.cluster import errors

# Segments after a namespace's name that belong to the Namespace object, not to a resource inside it.
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})


class ResourcePath(msgspec.Struct, frozen=True):
    """The address in a resource path; empty strings where the path says nothing. Without `plural`, a group's discovery.

    `rest` is what follows the subresource (only `proxy` has such a tail).
    """

    group: str
    version: str
    plural: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    rest: str = ""
    watch: bool = False


def parse_path(path: str) -> ResourcePath | None:
    """Return the target of a resource path; None when the path is none (discovery, health, nonsense).

    `/api/v1/...` is the core group, `/apis/GROUP/VERSION/...` all others; then optionally `watch/` (the legacy form of
    `?watch=true`), optionally `namespaces/NAMESPACE`, the plural, a name, a subresource and what follows.
    """
    parts = path.strip("/").split("/")
    if parts[0] == "api":
        if len(parts) < 3:
            return None
        group, version, parts = "", parts[1], parts[2:]
    elif parts[0] == "apis":
        if len(parts) < 4:
            return None
        group, version, parts = parts[1], parts[2], parts[3:]
    else:
        return None
    watch = parts[0] == "watch"
    if watch:
        parts = parts[1:]
    if not parts or not all(parts):
        return None
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2 and parts[2] not in _NAMESPACE_SUBRESOURCES:
        namespace, parts = parts[1], parts[2:]
    plural, *tail = parts
    name, subresource = (*tail, "", "")[:2]
    return ResourcePath(group, version, plural, namespace, name, subresource, "/".join(tail[2:]), watch)


def parse(path: str) -> ResourcePath:
    """Return the target of a resource path or of a group's discovery. Raises: NotFound for what is neither."""
    match path.strip("/").split("/"):
        case ["api", version]:
            return ResourcePath("", version)
        case ["apis", group, version]:
            return ResourcePath(group, version)
    target = parse_path(path)
    if target is None or target.rest or target.watch:
        raise errors.NotFound(f"the server could not find the requested resource: {path}")
    return target
