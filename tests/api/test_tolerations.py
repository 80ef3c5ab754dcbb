"""Which taints a pod bears."""

import pytest

from koordinator.api import tolerations
from koordinator.api.affinity import Taint, Toleration

HUGE = str(1 << 63)


@pytest.mark.parametrize(
    ("operator", "bound", "value", "bears"),
    [
        ("Lt", "10", "9", True),
        ("Lt", "10", "10", False),
        ("Gt", "10", "11", True),
        ("Gt", "-5", "-4", True),
        ("Gt", "-5", "-5", False),
        ("Gt", "10", "many", False),
        ("Gt", "010", "11", False),
        ("Gt", "10", "+11", False),
        ("Gt", "10", "", False),
        ("Lt", HUGE, "1", False),
        ("Gt", "1", HUGE, False),
        ("Lt", str((1 << 63) - 1), f"-{HUGE}", True),
        ("Ge", "10", "10", False),
    ],
)
def test_numbers_of_taints_are_compared(operator: str, bound: str, value: str, bears: bool) -> None:
    toleration = Toleration(key="sla", operator=operator, value=bound, effect="NoSchedule")
    taint = Taint(key="sla", value=value, effect="NoSchedule")
    assert tolerations.tolerates(toleration, taint) is bears
    assert tolerations.keeps_out((toleration,), (taint,)) is not bears
    assert not tolerations.tolerates(toleration, Taint(key="other", value=value, effect="NoSchedule"))


@pytest.mark.parametrize(
    ("operator", "value", "bears"),
    [
        ("Exists", "", True),
        ("Equal", "gpu", True),
        ("", "gpu", True),
        ("Equal", "", False),
        ("", "cpu", False),
    ],
)
def test_a_toleration_without_a_key_is_for_taints_of_any_key(operator: str, value: str, bears: bool) -> None:
    toleration = Toleration(operator=operator, value=value)
    for key in ("dedicated", "pool"):
        assert tolerations.tolerates(toleration, Taint(key=key, value="gpu", effect="NoSchedule")) is bears
