"""News of claims wake the pods that they concern, and devices that come back wake all."""

from typing import Any

import pytest

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.dra import ResourceClaim
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugins.dynamic_resources import plugin
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.dynamic_resources.builders import claim, user_of

GIVEN = {"allocation": {"devices": {"results": [{"device": "x"}]}}}


def made(name: str, status: Any = None) -> ResourceClaim:
    return from_builtins({**claim(name), "status": status or {}}, ResourceClaim)


def pod(*names: str) -> PodInfo:
    return PodInfo.of(from_builtins(user_of("p", *names), Pod), ResourceRegistry())


@pytest.mark.parametrize(
    ("old", "new", "helps"),
    [
        pytest.param(None, made("own"), True, id="its claim came"),
        pytest.param(None, made("other"), False, id="another's claim came"),
        pytest.param(made("own"), made("own"), False, id="only metadata of its claim changed"),
        pytest.param(made("own"), made("own", GIVEN), True, id="its claim got devices"),
        pytest.param(made("other"), made("other", GIVEN), False, id="another's claim got devices"),
        pytest.param(made("other", GIVEN), made("other"), True, id="devices came back"),
        pytest.param(made("other", GIVEN), None, True, id="a claim with devices went"),
        pytest.param(made("own"), None, False, id="its claim went"),
        pytest.param(None, None, True, id="a promise was taken back"),
    ],
)
def test_news_of_claims(old: ResourceClaim | None, new: ResourceClaim | None, helps: bool) -> None:
    events = plugin.CLAIM_EVENTS
    event = QueueingEvent(events[0 if old is None else 1 if new is not None else 2], None, old, new)
    index = plugin.ClaimIndex()
    index.put(0, pod("own"))
    index.put(1, pod("x", "y"))

    assert plugin.helps(event, pod("own").pod) is helps
    assert index.may_wake(event, 2)[0] or not helps
    index.clear(0)
    assert index.may_wake(
        QueueingEvent(ClusterEvent.RESOURCE_CLAIM_ADDED, None, None, made("own")), 2
    ).tolist() == [
        False,
        False,
    ]
