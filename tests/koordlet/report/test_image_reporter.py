"""Images that the kubelet does not name are told on the Node, and not any more when that is switched off."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.annotations.node import NODE_IMAGES, NodeImage, NodeImages
from koordinator.api.core import ContainerImage, Node
from koordinator.clock import FixedClock
from koordinator.host import cri
from koordinator.host.cri_messages import Image, ListImagesResponse
from koordinator.koordlet.report import image_reporter
from koordinator.koordlet.report.image_reporter import ImageReporter
from tests.host.cri_double import FakeRuntime
from tests.koordlet.report.agent_node import NAME, NOW_S, AgentNode, api

MIB = 1 << 20
WEB = Image("1", ("shop/web:1",), ("shop/web@sha256:1",), 300 * MIB)
JOB = Image("2", ("shop/job:1",), (), 200 * MIB)
NAMED = ContainerImage(names=["shop/job:1"], size_bytes=200 * MIB)


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    fake = FakeRuntime(tmp_path, cri.IMAGE_SERVICES[:1])
    fake.answers["ListImages"] = ListImagesResponse((JOB, WEB))
    await fake.start()
    yield fake
    await fake.stop()


async def reporting_node(root: Path) -> AgentNode:
    """The Node is in the API; its kubelet names one image."""
    node = AgentNode(root, await api(FixedClock(NOW_S)))
    image = {"names": NAMED.names, "sizeBytes": NAMED.size_bytes}
    await node.cluster.create(Node, {"metadata": {"name": NAME}, "status": {"images": [image]}})
    await seen(node)
    return node


async def seen(node: AgentNode) -> NodeImages | None:
    """What the Node says; the agent sees it, too."""
    node.view.node = await node.cluster.get(Node, NAME)
    return NODE_IMAGES.read(node.view.node.metadata.annotations)


async def test_images_that_the_kubelet_does_not_name_are_told(tmp_path: Path, runtime: FakeRuntime) -> None:
    node = await reporting_node(tmp_path)
    reporter = ImageReporter(node.shared, is_on=True)

    await reporter.run()

    names = ["shop/web@sha256:1", "shop/web:1"]
    assert await seen(node) == NodeImages(images=[NodeImage(names=names, size_bytes=300 * MIB)])
    version = node.view.node.metadata.resource_version if node.view.node else ""
    await reporter.run()
    await seen(node)
    assert node.view.node is not None and node.view.node.metadata.resource_version == version


async def test_a_runtime_that_does_not_answer_takes_nothing_back(
    tmp_path: Path, runtime: FakeRuntime
) -> None:
    node = await reporting_node(tmp_path)
    reporter = ImageReporter(node.shared, is_on=True)
    await reporter.run()
    told = await seen(node)

    runtime.answers.clear()
    await reporter.run()

    assert await seen(node) == told is not None


async def test_switched_off_the_annotation_goes(tmp_path: Path, runtime: FakeRuntime) -> None:
    node = await reporting_node(tmp_path)
    await ImageReporter(node.shared, is_on=True).run()
    assert await seen(node) is not None

    asked = len(runtime.asked)
    await ImageReporter(node.shared, is_on=False).run()

    assert await seen(node) is None
    assert len(runtime.asked) == asked, "no runtime is asked"


def test_nothing_is_told_where_the_kubelet_names_all() -> None:
    assert image_reporter.unnamed([JOB], [NAMED]) is None
    assert image_reporter.unnamed([Image("3", (), (), MIB), Image("4", ("x:1",), (), 0)], []) is None


@given(sizes=st.lists(st.integers(1, 2**40), max_size=3000))
def test_the_largest_images_are_told_and_the_annotation_stays_small(sizes: list[int]) -> None:
    images = [
        Image(str(i), (f"registry.example/team/service-{i}:1",), (), size) for i, size in enumerate(sizes)
    ]

    found = image_reporter.unnamed(images, [])

    told = [] if found is None else [each.size_bytes for each in found.images]
    assert told == sorted(sizes, reverse=True)[: len(told)]
    assert found is None or len(NODE_IMAGES.encode(found)) <= image_reporter.TEXT_BYTES_MAX
