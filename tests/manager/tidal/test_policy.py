"""What a pool says: windows in its time zone, and which pods are online."""

from typing import Any

import pytest

from koordinator import clock
from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.tidal_pool import TidalPool
from koordinator.manager.tidal.policy import PoolPolicy, policy_of


def policy(**spec: Any) -> PoolPolicy:
    return policy_of(
        from_builtins({"metadata": {"name": "night"}, "spec": {"nodeSelector": {}, **spec}}, TidalPool)
    )


def at(text: str) -> float:
    return clock.parse_rfc3339(text)


def opened(found: PoolPolicy, text: str) -> list[str]:
    return [clock.rfc3339(each.end_s) for each in found.windows(at(text)) or []]


NIGHT = {"start": "30 0 * * *", "duration": "6h", "batchNodes": "50%"}


def test_a_window_is_open_from_its_start_until_before_its_end_in_the_zone_of_the_pool() -> None:
    found = policy(schedule=[NIGHT], timeZone="Asia/Shanghai")
    assert opened(found, "2026-03-01T16:29:59Z") == []
    assert opened(found, "2026-03-01T16:30:00Z") == ["2026-03-01T22:30:00Z"]
    assert opened(found, "2026-03-01T22:29:59Z") == ["2026-03-01T22:30:00Z"]
    assert opened(found, "2026-03-01T22:30:00Z") == []


def test_a_window_that_opens_again_before_it_ends_goes_on() -> None:
    found = policy(schedule=[{"start": "*/10 * * * *", "duration": "1h", "batchNodes": 1}])
    assert opened(found, "2026-03-01T12:34:56Z") == ["2026-03-01T13:30:00Z"]


def test_a_window_lasts_its_time_when_clocks_change() -> None:
    found = policy(schedule=[NIGHT], timeZone="Europe/Berlin")
    assert opened(found, "2026-03-29T00:00:00Z") == [
        "2026-03-29T05:30:00Z"
    ]  # summer time begins at 01:00 UTC


def test_the_next_change_is_the_opening_the_lead_time_or_the_end() -> None:
    found = policy(schedule=[NIGHT], leadTime="45m")
    for now, expected in (
        ("2026-03-01T12:00:00Z", "2026-03-02T00:30:00Z"),
        ("2026-03-02T00:30:00Z", "2026-03-02T05:45:00Z"),
        ("2026-03-02T05:45:00Z", "2026-03-02T06:30:00Z"),
    ):
        assert found.next_change_s(at(now)) == at(expected)
    assert policy().next_change_s(at("2026-03-01T12:00:00Z")) is None


@pytest.mark.parametrize(
    ("selector", "said", "expected"),
    [
        pytest.param(None, {}, True, id="a pod without class"),
        pytest.param(None, {labels.PRIORITY_CLASS: "koord-mid"}, True, id="a mid pod"),
        pytest.param(None, {labels.PRIORITY_CLASS: "koord-batch"}, False, id="a batch pod"),
        pytest.param({"matchLabels": {"tier": "web"}}, {}, False, id="one that the selector leaves out"),
        pytest.param({"matchLabels": {"tier": "web"}}, {"tier": "web"}, True, id="one that it matches"),
    ],
)
def test_which_pods_are_online(selector: Any, said: dict[str, str], expected: bool) -> None:
    found = policy(**({"onlinePodSelector": selector} if selector else {}))
    assert found.is_online(from_builtins({"metadata": {"labels": said}}, Pod)) is expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        pytest.param({labels.KATALYST_POD_TYPE: "online"}, True, id="by Katalyst's label"),
        pytest.param({labels.PRIORITY_CLASS: "koord-prod"}, True, id="by its class"),
        pytest.param({}, False, id="neither"),
    ],
)
def test_which_pods_are_online_where_katalyst_was(said: dict[str, str], expected: bool) -> None:
    found = policy(katalystLabels=True)
    assert found.is_online(from_builtins({"metadata": {"labels": said}}, Pod)) is expected
