"""One pass over one node, the two views of its batch pool, and what is recorded."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import labels
from koordinator.api.annotations.node import ThirdPartyAllocation
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.yarn import amounts, node_sync
from koordinator.yarn.amounts import BatchAmount, Rounding, YarnResource
from koordinator.yarn.node_sync import (
    HeldFigure,
    NodeId,
    NodeManagerReport,
    NodeManagerUse,
    Policy,
    SyncOutcome,
    SyncPlan,
)

numbers = st.integers(0, 2**50)
batches = st.builds(BatchAmount, numbers, numbers)


def node(**allocatable: str) -> Node:
    listed = {"kubernetes.io/batch-cpu": "8000", "kubernetes.io/batch-memory": "16Gi", **allocatable}
    return from_builtins({"metadata": {"name": "n"}, "status": {"allocatable": listed}}, Node)


def manager(node_id: str | None = "nm:8041", name: str = "nm", **status: object) -> Pod:
    annotations = {} if node_id is None else {amounts.NODE_ID_ANNOTATION: node_id}
    meta = {
        "name": name,
        "labels": {amounts.COMPONENT_LABEL: amounts.NODE_MANAGER},
        "annotations": annotations,
    }
    return from_builtins({"metadata": meta, "spec": {"nodeName": "n"}, "status": status}, Pod)


NOTHING = YarnResource()


def planned(node: Node, *pods: Pod, used: YarnResource = NOTHING) -> SyncPlan:
    known = node_sync.facts(node, node_sync.node_manager(pods), BatchAmount())
    return node_sync.plan(known, NodeManagerUse(used, HeldFigure(used, 0.0)), Policy())


@given(origin=numbers, requested=numbers, used=numbers)
def test_overbooked_schedulers_get_no_more_than_they_have(origin: int, requested: int, used: int) -> None:
    o, k, y = (BatchAmount(each, each) for each in (origin, requested, used))
    if amounts.overbooked(o, k, y).cpu_milli > 0:
        assert amounts.view_total(o, y).cpu_milli < requested or requested == 0
        assert amounts.view_total(o, k).cpu_milli < used or used == 0


@given(batch=batches)
def test_exact_rounding_never_promises_more_than_there_is(batch: BatchAmount) -> None:
    back = amounts.to_batch(amounts.to_yarn(batch, Rounding.EXACT))
    assert back.cpu_milli <= batch.cpu_milli
    assert back.memory_bytes <= batch.memory_bytes


@given(
    used=batches, foreign=st.lists(st.sampled_from(["slurm", "flux", amounts.ALLOCATION_NAME]), max_size=4)
)
def test_recording_twice_writes_once_and_keeps_foreign_entries(used: BatchAmount, foreign: list[str]) -> None:
    entries = [ThirdPartyAllocation(name=name, priority="koord-batch") for name in foreign]

    merged = amounts.with_allocation(entries, amounts.entry(used))

    others = [name for name in foreign if name != amounts.ALLOCATION_NAME]
    assert [each.name for each in merged if each.name != amounts.ALLOCATION_NAME] == others
    assert amounts.with_allocation(merged, amounts.entry(used)) == merged
    text = amounts.new_text(None, used)
    assert amounts.recorded(text) == used
    assert amounts.new_text(text, used) is None


def test_a_manager_that_is_not_ready_gives_way_to_one_that_is() -> None:
    waiting = manager("old:1", "old", phase="Running", conditions=[{"type": "Ready", "status": "False"}])
    ready = manager("new:1", "new", phase="Running")

    chosen = node_sync.node_manager((waiting, ready, manager("x:1", phase="Failed")))

    assert node_sync.facts(node(), chosen, BatchAmount()).node == NodeId("new", 1)


@pytest.mark.parametrize("node_id", [None, "", "nm", "nm:", "nm:-1", "nm:65536", "nm:http", "a:1:2"])
def test_a_bad_node_id_leaves_the_node_alone_and_says_why(node_id: str | None) -> None:
    plan = planned(node(), manager(node_id))

    assert (plan.outcome, plan.total, plan.allocation) == (SyncOutcome.BAD_NODE_ID, None, None)
    assert amounts.NODE_ID_ANNOTATION in plan.reason


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        pytest.param(BatchAmount(2_000, 2**30), None, id="what it used is not given back"),
        pytest.param(BatchAmount(0, 2**31), BatchAmount(1_000, 2**31), id="what it has taken since is told"),
    ],
)
def test_a_resource_manager_that_refuses_gets_no_less_recorded(
    recorded: BatchAmount, expected: BatchAmount | None
) -> None:
    plan = planned(node(), manager(), used=YarnResource(1, 1024))

    assert node_sync.when_refused(plan.allocation, recorded) == expected


@pytest.mark.parametrize(
    ("return_at", "usual_ms", "timeout_ms"),
    [
        pytest.param("1970-01-01T00:05:00Z", -1, 200_000, id="until the node returns"),
        pytest.param("1970-01-01T00:05:00Z", 60_000, 60_000, id="or for the usual time, if that is shorter"),
        pytest.param("1970-01-01T00:01:00Z", -1, 0, id="the time is over"),
        pytest.param("soon", -1, 0, id="it says nothing that can be read"),
    ],
)
def test_containers_end_before_their_node_returns(return_at: str, usual_ms: int, timeout_ms: int) -> None:
    metadata = node().metadata
    marks = {"labels": {labels.TIDAL_PHASE: "to-online"}, "annotations": {labels.TIDAL_RETURN_AT: return_at}}
    returning = msgspec.structs.replace(node(), metadata=msgspec.structs.replace(metadata, **marks))

    known = node_sync.facts(returning, manager(), BatchAmount())

    assert node_sync.over_commit_timeout_ms(known, usual_ms, 100.0) == timeout_ms
    made = node_sync.plan(known, NodeManagerUse(NOTHING, None), Policy())
    assert made.total == NOTHING
    online = node_sync.facts(node(), manager(), BatchAmount())
    assert node_sync.over_commit_timeout_ms(online, usual_ms, 100.0) == usual_ms


@pytest.mark.parametrize(
    ("percent", "requested", "vcores"),
    [(100, 0, 8), (100, 3_000, 5), (50, 0, 4), (50, 3_000, 4), (50, 5_000, 3), (50, 9_000, 0)],
)
def test_yarn_gets_what_pods_leave_up_to_its_share(percent: int, requested: int, vcores: int) -> None:
    known = node_sync.facts(node(), manager(), BatchAmount(requested, 0))

    plan = node_sync.plan(known, NodeManagerUse(YarnResource(), None), Policy(yarn_percent=percent))

    assert plan.total is not None
    assert plan.total.vcores == vcores


def test_a_resource_manager_that_has_just_taken_over_makes_no_figure_smaller() -> None:
    held, report = HeldFigure(USED, 0.0), NodeManagerReport(NodeId("nm", 1), used=YarnResource(1, 2048))

    recovering = node_sync.use_to_count(report, held, True, 1.0, is_recovering=True)

    assert recovering.used == YarnResource(4, 2048)
    assert node_sync.use_to_count(report, recovering.held, True, 2.0).used == YarnResource(1, 2048)


def test_an_absurd_pool_is_bounded() -> None:
    plan = planned(node(**{"kubernetes.io/batch-cpu": "1e40"}), manager())
    assert plan.total is not None
    assert plan.total.vcores == amounts.VCORES_MAX


USED = YarnResource(4, 1024)
LOST = NodeManagerReport(NodeId("nm", 1), "LOST")


@pytest.mark.parametrize(
    ("report", "held", "has_polled", "expected"),
    [
        pytest.param(None, None, False, None, id="nothing is written before the first poll"),
        pytest.param(
            None,
            HeldFigure(USED, 0.0),
            False,
            USED,
            id="before the first poll the last figure counts",
        ),
        pytest.param(LOST, HeldFigure(USED, 0.0), True, USED, id="a lost manager keeps its figure"),
        pytest.param(
            LOST,
            HeldFigure(USED, -1.0),
            True,
            YarnResource(),
            id="and loses it after the hold time",
        ),
        pytest.param(
            NodeManagerReport(NodeId("nm", 1), used=USED), None, True, USED, id="a running one says it itself"
        ),
        pytest.param(
            NodeManagerReport(NodeId("nm", 1), "DECOMMISSIONING", USED),
            None,
            True,
            USED,
            id="a leaving one still uses",
        ),
    ],
)
def test_what_yarn_is_believed_to_use(
    report: NodeManagerReport | None,
    held: HeldFigure | None,
    has_polled: bool,
    expected: YarnResource | None,
) -> None:
    now_s = node_sync.HOLD_S - 1.0

    assert (
        node_sync.use_to_count(report, held, has_polled, now_s=now_s, hold_s=node_sync.HOLD_S).used
        == expected
    )


def test_a_manager_that_leaves_gets_no_more() -> None:
    assert not node_sync.may_raise_total(NodeManagerReport(NodeId("nm", 1), "DECOMMISSIONING"))
    assert node_sync.may_raise_total(None)
