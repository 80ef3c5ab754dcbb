"""Tell the cluster which images this node has beyond those that the kubelet names, by what its runtimes list (CRI).

The kubelet names the 50 largest images in `status.images`; a node has hundreds, and the scheduler's ImageLocality then
sees a node without an image that is there. The rest goes to an annotation of the Node, the largest first, as many as
fit into `TEXT_BYTES_MAX`. Off by default (gate `ImageReport`): the reference tells of no images. Switched off, the
annotation goes.
"""

import logging
from collections.abc import Iterable, Sequence

from koordinator.api.annotations.node import NODE_IMAGES, NodeImage, NodeImages
from koordinator.api.core import ContainerImage
from koordinator.api.feature_gates import FeatureGate, FeatureStage
from koordinator.host.cri_messages import Image
from koordinator.host.errors import ContentError, RuntimeCallError
from koordinator.koordlet.parts import Shared, container_runtimes, patch_node

log = logging.getLogger(__name__)

GATE = "ImageReport"
NEW_GATES = {
    GATE: FeatureGate(
        False,
        FeatureStage.ALPHA,
        "tell the scheduler of images that the kubelet does not name (not in the reference)",
    )
}
INTERVAL_S = 60.0
"""Images come with pods: who is placed within a minute does not profit yet."""
TEXT_BYTES_MAX = 64 * 1024
"""Part of the 256 KiB that all annotations of an object have together."""
NAMES_MAX = 5
"""Names of one image, as the kubelet limits them."""


def unnamed(images: Iterable[Image], named: Sequence[ContainerImage]) -> NodeImages | None:
    """Return the images that the kubelet does not name, largest first, as many as fit; None without any."""
    known = {name for image in named for name in image.names}
    found = []
    for image in sorted(images, key=lambda each: (-each.size, each.id)):
        names = [*image.repo_digests, *image.repo_tags][:NAMES_MAX]
        if names and image.size > 0 and known.isdisjoint(names):
            found.append(NodeImage(names=names, size_bytes=image.size))
    fitting, left = 0, TEXT_BYTES_MAX
    for each in found:
        left -= len(NODE_IMAGES.encode(NodeImages(images=[each])))
        if left < 0:
            break
        fitting += 1
    return NodeImages(images=found[:fitting]) if fitting else None


class ImageReporter:
    """Writes the annotation when it changes, and removes it while the gate is off."""

    name = "images"
    informers = ()
    interval_s = INTERVAL_S

    def __init__(self, shared: Shared, *, is_on: bool) -> None:
        self._shared = shared
        self._is_on = is_on
        self._runtimes = container_runtimes(shared)
        self._problem = ""

    async def run(self) -> None:
        """Compare what the Node says with what the runtimes have, and write the difference."""
        shared = self._shared
        node = shared.view.node
        if shared.executor.is_dry_run or node is None:
            return
        images = await self._images() if self._is_on else []
        if images is None:
            return
        found = unnamed(images, node.status.images)
        wanted = None if found is None else NODE_IMAGES.encode(found)
        if wanted != node.metadata.annotations.get(NODE_IMAGES.key):
            await patch_node(shared, self.name, {"metadata": {"annotations": {NODE_IMAGES.key: wanted}}})

    async def _images(self) -> list[Image] | None:
        """Return the images of all runtimes; None while one does not answer."""
        found: list[Image] = []
        problems = []
        for runtime in self._runtimes.present():
            try:
                found += await self._runtimes.images(runtime)
            except (RuntimeCallError, ContentError) as error:
                problems.append(f"{runtime}: {error}")
        problem = "; ".join(problems)
        if problem and problem != self._problem:
            log.warning("images not listed", extra={"problem": problem})
        self._problem = problem
        return None if problem else found
