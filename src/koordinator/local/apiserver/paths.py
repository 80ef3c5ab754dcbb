"""Find the object that a URL path speaks of: the router of Kubernetes paths.

`/api/v1/...` is the core group, `/apis/GROUP/VERSION/...` all others; then optionally `watch/` (the legacy
form of `?watch=true`), optionally `namespaces/NAMESPACE`, the plural, a name, a subresource and what follows.
"""

import msgspec

# What follows `/api/v1/namespaces/NAME/` and is not a resource inside that namespace.
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})


class ResourcePath(msgspec.Struct, frozen=True):
    """The address in a resource path; empty strings where the path says nothing.

    `rest` is what follows the subresource (only `proxy` has such a tail).
    """

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    rest: str = ""
    watch: bool = False


def parse(path: str) -> ResourcePath | None:
    """Return the target of a resource path; None when the path is none (discovery, health, nonsense)."""
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
