"""ImageLocality: prefers nodes that have the pod's images already. Source: behaviour/scheduler B2."""

from collections.abc import Hashable
from typing import Any

import msgspec
import numpy as np

from koordinator.api.core import Node
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.framework import SCORE_MAX, Handle, PreScorePlugin, ScorePlugin, Scores
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Status
from koordinator.scheduler.table import pod_info
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.nodes import RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo

MIB = 1 << 20
THRESHOLD_MIN_BYTES = 23 * MIB
CONTAINER_THRESHOLD_MAX_BYTES = 1000 * MIB


class ImageState(msgspec.Struct, frozen=True):
    """The images of all containers (an image used twice stands twice)."""

    images: tuple[str, ...]
    container_count: int


class ImageLocality(PreScorePlugin[ImageState], ScorePlugin[ImageState], RowKeeper):
    name = "ImageLocality"
    keyed_by = (pod_info.images,)

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._sizes: dict[str, dict[int, int]] = {}
        self._sizes_at: dict[int, dict[str, int]] = {}
        self._versions: dict[str, int] = {}

    # Which images are where

    def node_changed(self, row: int, node: Node) -> None:
        sizes = {name: image.size_bytes for image in node.status.images for name in image.names}
        if sizes == self._sizes_at.get(row, {}):
            return
        self.row_freed(row)
        self._sizes_at[row] = sizes
        for name, size_bytes in sizes.items():
            self._sizes.setdefault(name, {})[row] = size_bytes
            self._versions[name] = self._versions.get(name, 0) + 1

    def row_freed(self, row: int) -> None:
        for name in self._sizes_at.pop(row, {}):
            by_row = self._sizes[name]
            del by_row[row]
            if not by_row:
                del self._sizes[name]
            self._versions[name] = self._versions.get(name, 0) + 1

    # A pod

    def prepare(self, pod: PodInfo) -> ImageState:
        containers = [*pod.pod.spec.init_containers, *pod.pod.spec.containers]
        images = tuple(normalized_name(container.image) for container in containers)
        return ImageState(images, len(containers))

    def epoch(self, state: ImageState) -> Hashable:
        """A score depends on how many nodes have an image, and on how many nodes there are."""
        if self._sizes.keys().isdisjoint(state.images):
            return ()
        return tuple(self._versions.get(image, 0) for image in state.images)

    def pre_score(self, state: ImageState) -> Status:
        return SUCCESS if any(image in self._sizes for image in state.images) else SKIP

    def score(self, state: ImageState, rows: Rows) -> Scores:
        total = self.handle.table.node_count
        sums = np.zeros(self.handle.table.capacity, np.int64)
        for image in state.images:
            by_row = self._sizes.get(image, {})
            alive = {row: size for row, size in by_row.items() if self.handle.table.node_at(row) is not None}
            for row, size_bytes in alive.items():
                sums[row] += scaled_size(size_bytes, len(alive), total)
        return image_locality(sums[rows], state.container_count)


def scaled_size(size_bytes: int, nodes_with_image: int, node_count: int) -> int:
    """Bytes that count for an image: fewer when few nodes have it, so that pods do not crowd there."""
    return int(size_bytes * (nodes_with_image / node_count))


def image_locality(sums_bytes: I64, container_count: int) -> Scores:
    """Return scores (rows,): 0 below 23 MiB of images present, 100 from 1000 MiB per container on, linear in
    between.
    """
    highest = max(CONTAINER_THRESHOLD_MAX_BYTES * container_count, THRESHOLD_MIN_BYTES + 1)
    clamped = np.clip(sums_bytes, THRESHOLD_MIN_BYTES, highest)
    return SCORE_MAX * (clamped - THRESHOLD_MIN_BYTES) // (highest - THRESHOLD_MIN_BYTES)


def normalized_name(image: str) -> str:
    """Return the image with `:latest` where it has no tag (a colon before the last slash is a port)."""
    return image if image.rfind(":") > image.rfind("/") else f"{image}:latest"
