"""Which facts of a node object an update changes."""

import enum
from collections.abc import Hashable
from typing import Any

from koordinator.api.core import Node


class NodeAspect(enum.Flag):
    """Which facts of a node object differ from before."""

    NONE = 0
    ADDED = enum.auto()
    ALLOCATABLE = enum.auto()
    LABELS = enum.auto()
    TAINTS = enum.auto()
    CONDITIONS = enum.auto()
    ANNOTATIONS = enum.auto()
    IMAGES = enum.auto()


def aspects_of(old: Node | None, new: Node) -> NodeAspect:
    """What differs between two states of a node; all of it for one that was not known."""
    if old is None:
        return ~NodeAspect.NONE
    pairs: tuple[tuple[NodeAspect, Any, Any], ...] = (
        (NodeAspect.ALLOCATABLE, old.status.allocatable, new.status.allocatable),
        (NodeAspect.LABELS, old.metadata.labels, new.metadata.labels),
        (NodeAspect.TAINTS, _taint_facts(old), _taint_facts(new)),
        (NodeAspect.CONDITIONS, _condition_facts(old), _condition_facts(new)),
        (NodeAspect.ANNOTATIONS, old.metadata.annotations, new.metadata.annotations),
        (NodeAspect.IMAGES, old.status.images, new.status.images),
    )
    aspect = NodeAspect.NONE
    for flag, before, after in pairs:
        if before != after:
            aspect |= flag
    return aspect


def _taint_facts(node: Node) -> Hashable:
    return (node.spec.unschedulable, tuple(node.spec.taints))


def _condition_facts(node: Node) -> Hashable:
    return tuple((condition.type, condition.status) for condition in node.status.conditions)
