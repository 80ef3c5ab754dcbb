"""Which taints of devices a request bears."""

import pytest

from koordinator.api.dra import DeviceTaint
from koordinator.scheduler.plugins.dynamic_resources.demand import tolerates


@pytest.mark.parametrize(
    ("toleration", "is_borne"),
    [
        (("k", "Equal", "v", "NoSchedule"), True),
        (("k", "Equal", "v", ""), True),
        (("k", "Equal", "v", "NoExecute"), False),
        (("k", "Equal", "w", ""), False),
        (("l", "Equal", "v", ""), False),
        (("", "Equal", "v", ""), False),
        (("k", "Exists", "", ""), True),
        (("l", "Exists", "", ""), False),
        (("", "Exists", "", ""), True),
        (("", "Exists", "", "NoExecute"), False),
    ],
)
def test_a_taint_is_borne_by_key_value_and_effect(
    toleration: tuple[str, str, str, str], is_borne: bool
) -> None:
    taint = DeviceTaint(key="k", value="v", effect="NoSchedule")
    assert tolerates([toleration], taint) is is_borne
    assert tolerates([("other", "Exists", "", ""), toleration], taint) is is_borne
    assert tolerates([], taint) is False
    assert tolerates([], DeviceTaint(key="k", value="v", effect="None")) is True
