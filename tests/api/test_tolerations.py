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
