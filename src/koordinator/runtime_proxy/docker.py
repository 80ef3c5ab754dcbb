"""Translate between Docker and CRI: cgroup parents, labels, environment. Pure. Source: behaviour/koordlet-act 23.4."""

from collections.abc import Iterable, Mapping

import msgspec

from koordinator.host import cgroup_layout

SYSTEMD = "systemd"
ANNOTATION_PREFIX = "annotation."

_SLICE = ".slice"


class SplitLabels(msgspec.Struct, frozen=True):
    """Docker has labels only; dockershim kept annotations among them, under a prefix."""

    labels: dict[str, str]
    annotations: dict[str, str]


def to_cri_path(driver: str, cgroup_parent: str) -> str:
    """Return the whole cgroup path of a Docker cgroup parent, as hooks expect it.

    systemd nests slices by the dashes of their names: `a-b.slice` lies in `/a.slice` (systemd.slice(5)).
    """
    if driver != SYSTEMD:
        return cgroup_parent
    name = cgroup_parent.rstrip("/").rpartition("/")[2]
    return f"/{cgroup_layout.expanded_slice(name)}" if name.endswith(_SLICE) else cgroup_parent


def to_docker_parent(driver: str, cgroup_parent: str) -> str:
    """Return the cgroup parent that Docker wants for a path: with systemd, only its last component."""
    return cgroup_parent.rstrip("/").rpartition("/")[2] if driver == SYSTEMD else cgroup_parent


def split_labels(labels: Mapping[str, str]) -> SplitLabels:
    """Return which Docker labels are labels of the pod or container, and which its annotations."""
    split = SplitLabels({}, {})
    for key, value in labels.items():
        if key.startswith(ANNOTATION_PREFIX):
            split.annotations[key.removeprefix(ANNOTATION_PREFIX)] = value
        else:
            split.labels[key] = value
    return split


def environment(variables: Iterable[str]) -> dict[str, str]:
    """`NAME=value` lines as a map; a line without `=` only inherits and is left out."""
    pairs = (variable.partition("=") for variable in variables)
    return {name: value for name, equals, value in pairs if equals}
