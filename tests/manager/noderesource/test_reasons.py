"""What is told of nodes that lend nothing."""

import pytest

from koordinator.manager.noderesource import controller
from koordinator.manager.noderesource.decide import Withdrawal
from koordinator.manager.noderesource.rows import NodeRow


@pytest.mark.parametrize(
    ("have", "reported"),
    [
        pytest.param({}, [], id="a node that lends nothing anyway is not told about"),
        pytest.param({"nvidia.com/gpu": 1}, [], id="nor one with resources of others"),
        pytest.param(
            {"kubernetes.io/batch-cpu": 4000}, ["ColocationDisabled"], id="one that lent something is"
        ),
        pytest.param(
            {"nvidia.com/gpu": 1, "kubernetes.io/mid-memory": 1},
            ["ColocationDisabled"],
            id="of whatever priority it was",
        ),
    ],
)
def test_colocation_that_is_switched_off_is_told_where_something_was_lent(
    have: dict[str, int], reported: list[str]
) -> None:
    row = NodeRow("n", have=have, withdrawal=Withdrawal.DISABLED)

    assert [note.reason for note in controller.report_notes(row, 0.0)] == reported
