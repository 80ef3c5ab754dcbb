"""Plugins that change what other plugins see, point at nodes, and take part in booking."""

import logging
from collections.abc import Hashable
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.scheduler.engine.evaluation_cache import evaluate
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.engine.view import View
from koordinator.scheduler.plugin.capabilities import (
    FilterTransformer,
    FindOneNodePlugin,
    FoundNode,
    PlacementPlan,
    PostFilterTransformer,
    PreferNodesPlugin,
    PreferredNodes,
    PreFilterTransformer,
    ResizePodPlugin,
)
from koordinator.scheduler.plugin.framework import (
    Diagnosis,
    FilterPlugin,
    PostFilterPlugin,
    PostFilterResult,
    PreFilterPlugin,
    PreFilterResult,
    ReasonCodes,
    ReservePlugin,
)
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Status, unresolvable, unschedulable
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import Trial
from tests.scheduler.extending import Desk
from tests.scheduler.world import pod


def relabelled(pod: PodInfo, **spec: Any) -> PodInfo:
    changed = msgspec.structs.replace(pod.pod, spec=msgspec.structs.replace(pod.pod.spec, **spec))
    return msgspec.structs.replace(pod, pod=changed)


class Selecting(PreFilterPlugin[None], PreFilterTransformer[None]):
    """Pods of the team see only the team's nodes, though they do not ask for it."""

    name = "Selecting"
    heard: ClassVar[list[frozenset[str] | None]] = []

    def class_key(self, pod: PodInfo) -> Hashable:
        return pod.pod.metadata.labels.get("team", "")

    def before_pre_filter(self, pod: PodInfo, what_if: Trial) -> PodInfo | Status:
        team = pod.pod.metadata.labels.get("team", "")
        if team == "unknown":
            return unresolvable("no such team")
        return relabelled(pod, node_selector={"team": team}) if team else pod

    def pre_filter(self, state: None) -> PreFilterResult:
        return PreFilterResult()

    def after_pre_filter(self, state: None, pod: PodInfo, result: PreFilterResult) -> Status:
        self.heard.append(result.node_names)
        return SUCCESS


def of_team(name: str, team: str) -> dict[str, Any]:
    found = pod(name)
    found["metadata"]["labels"] = {"team": team}
    return found


def test_filters_see_the_pod_as_the_transformer_shows_it_and_the_pod_stays_as_it_is() -> None:
    Selecting.heard.clear()
    desk = Desk(Selecting).nodes("a", labels={"team": "x"}).nodes("b", "c")

    for number in range(3):
        placed = desk.run(of_team(f"p{number}", "x"))
        assert placed.node_name == "a"  # type: ignore[union-attr]
        assert placed.pod.pod.spec.node_selector == {}
    assert Selecting.heard == [None] * 3
    assert "didn't match Pod's node affinity/selector" in desk.refuse(of_team("q", "y")).status.message


def test_a_transformer_that_refuses_is_named_and_its_reason_reported() -> None:
    found = Desk(Selecting).nodes("a", "b").refuse(of_team("p", "unknown"))

    assert found.status.message.startswith("0/2 nodes are available: no such team.")
    assert found.rejected_by == {"Selecting"}


def test_preemption_sees_the_pod_as_the_transformer_shows_it() -> None:
    desk = Desk(Selecting).nodes("b", "c", cpu="2").nodes("a", cpu="2", labels={"team": "x"})
    for name in ("a", "b", "c"):
        desk.table.assign(desk.info(pod(f"low-{name}", cpu="2")), name)
    wanting = of_team("high", "x")
    wanting["spec"]["priority"] = 10

    assert desk.refuse(wanting).nominated_node == "a"


class GivingBack(FilterPlugin[str], FilterTransformer[str]):
    """Pods that name a tenant see the nodes without the pod that keeps the tenant's room."""

    name = "GivingBack"

    def class_key(self, pod: PodInfo) -> Hashable:
        return self.prepare(pod)

    def prepare(self, pod: PodInfo) -> str:
        return pod.pod.metadata.annotations.get("tenant", "")

    def before_filter(self, state: str, pod: PodInfo, what_if: Trial) -> PodInfo | Status:
        for place in list(self.handle.table.places()):
            if state and place.pod.pod.metadata.annotations.get("keeps-room-for") == state:
                what_if.take(place.pod)
        return pod

    def filter(self, state: str, rows: Rows) -> ReasonCodes:
        return np.zeros(rows.size, np.uint16)


def keeping(name: str, tenant: str, cpu: str) -> dict[str, Any]:
    found = pod(name, cpu=cpu)
    found["metadata"]["annotations"] = {"keeps-room-for": tenant}
    return found


def tenant_pod(name: str, tenant: str, cpu: str = "2") -> dict[str, Any]:
    found = pod(name, cpu=cpu)
    found["metadata"]["annotations"] = {"tenant": tenant}
    return found


def test_filters_see_the_nodes_without_what_a_transformer_takes_off_them() -> None:
    desk = Desk(GivingBack).nodes("a", "b")
    desk.table.assign(desk.info(keeping("room", "t", "3")), "a")
    desk.table.assign(desk.info(pod("other", cpu="4")), "b")

    assert "2 Insufficient cpu" in desk.refuse(pod("stranger", cpu="2")).status.message
    assert desk.place(tenant_pod("p", "t")) == "a"
    place = desk.table.place_of("room")
    assert place is not None and desk.table.name_of(place.row) == "a"
    assert desk.table.requested[0, place.row] == 5_000


def test_what_a_transformer_shows_is_shown_again_after_every_change() -> None:
    desk = Desk(GivingBack).nodes("a", "b")
    for name in ("a", "b"):
        desk.table.assign(desk.info(keeping(f"room-{name}", "t", "4")), name)

    nodes = [desk.place(tenant_pod(f"p{number}", "t")) for number in range(4)]

    assert sorted(nodes) == ["a", "a", "b", "b"]
    assert "2 Insufficient cpu" in desk.refuse(tenant_pod("p4", "t")).status.message
    desk.table.unassign("p0")
    assert desk.place(tenant_pod("p5", "t")) == nodes[0]


@settings(max_examples=25, deadline=None)
@given(
    rooms=st.lists(st.integers(0, 4), min_size=3, max_size=3),
    team=st.sampled_from(("", "x", "unknown")),
    cores=st.integers(1, 4),
    is_tenant=st.booleans(),
)
def test_one_node_asked_alone_says_what_it_says_among_all(
    rooms: list[int], team: str, cores: int, is_tenant: bool
) -> None:
    desk = Desk(Selecting, GivingBack).nodes("a", "b").nodes("c", labels={"team": "x"})
    for name, kept in zip("abc", rooms, strict=True):
        desk.table.assign(desk.info(keeping(f"room-{name}", "t", str(kept))), name)
    asking = tenant_pod("p", "t" if is_tenant else "", str(cores))
    asking["metadata"]["labels"] = {"team": team} if team else {}
    info = desk.info(asking)

    alone = View(desk.profile, desk.table, desk.engine.nominations, info)
    among = evaluate(desk.profile, desk.table, info)

    for row in desk.table.rows.tolist():
        assert alone.check(row).is_success is bool(among.is_feasible(row)), desk.table.name_of(row)


class Listening(PostFilterPlugin[None], PostFilterTransformer[None]):
    name = "Listening"
    heard: ClassVar[list[tuple[str, Status, Status]]] = []

    def post_filter(self, pod: PodInfo, diagnosis: Diagnosis) -> PostFilterResult:
        return PostFilterResult(unschedulable("nothing to listen to"))

    def after_post_filter(self, pod: PodInfo, diagnosis: Diagnosis, status: Status) -> None:
        row = self.handle.table.row_of("a")
        assert row is not None
        self.heard.append((pod.key, diagnosis.status_of(row), status))


def test_a_transformer_after_post_filter_hears_the_nodes_statuses_and_the_end() -> None:
    Listening.heard.clear()
    desk = Desk(Listening).nodes("a", cpu="1")

    assert desk.refuse(pod("p", cpu="2")).status.message.endswith("nothing to listen to")
    ((key, at_node, ended),) = Listening.heard
    assert (key, at_node.plugin, ended.plugin) == ("default/p", "NodeResourcesFit", "Listening")


class Planner(PreFilterPlugin[dict[str, Any] | None], FindOneNodePlugin[dict[str, Any] | None]):
    """Reads its answer from an annotation of the pod."""

    name = "Planner"
    asked = 0

    def class_key(self, pod: PodInfo) -> Hashable:
        return pod.pod.metadata.annotations.get("plan")

    def prepare(self, pod: PodInfo) -> dict[str, Any] | None:
        text = pod.pod.metadata.annotations.get("plan")
        return msgspec.json.decode(text) if text else None

    def pre_filter(self, state: dict[str, Any] | None) -> PreFilterResult:
        return PreFilterResult()

    def find_one_node(self, state: dict[str, Any] | None, pod: PodInfo, result: PreFilterResult) -> FoundNode:
        type(self).asked += 1
        assert state is not None
        if "refuse" in state:
            return FoundNode(unschedulable(state["refuse"]))
        if "nodes" in state:
            return FoundNode(SUCCESS, plan=PlacementPlan((pod,), state["nodes"]))
        return FoundNode(SKIP) if state.get("skip") else FoundNode(SUCCESS, node_name=state.get("node", ""))


def planned(name: str, plan: dict[str, Any], cpu: str = "1") -> dict[str, Any]:
    found = pod(name, cpu=cpu)
    found["metadata"]["annotations"] = {"plan": msgspec.json.encode(plan).decode()}
    return found


@pytest.mark.parametrize(
    ("plan", "node"),
    [
        pytest.param({"node": "b"}, "b", id="a node"),
        pytest.param({"nodes": {"p": "c"}}, "c", id="a plan"),
        pytest.param({"skip": True}, "a", id="no opinion"),
    ],
)
def test_a_pod_goes_to_its_planned_node_and_nowhere_else(plan: dict[str, Any], node: str) -> None:
    desk = Desk(Planner).nodes("b", "c", cpu="2").nodes("a", cpu="32")
    assert desk.place(planned("p", plan)) == node


def test_a_planned_node_that_does_not_fit_refuses_the_pod_and_counts_the_others_as_left_out() -> None:
    desk = Desk(Planner).nodes("a", "b", cpu="4").nodes("c", cpu="1")
    found = desk.refuse(planned("p", {"node": "c"}, cpu="2"))

    assert found.status.message.startswith(
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [Planner]."
    )
    assert found.rejected_by == {"Planner", "NodeResourcesFit"}


def test_a_plan_without_a_node_for_the_pod_is_an_error() -> None:
    found = Desk(Planner).nodes("a").refuse(planned("p", {"nodes": {"other": "a"}}))
    assert not found.status.is_rejected
    assert (found.status.plugin, found.status.message) == ("Planner", "no node is planned for pod default/p")


def test_a_refusing_planner_refuses_the_pod_as_a_whole() -> None:
    found = Desk(Planner).nodes("a", "b").refuse(planned("p", {"refuse": "the job has no room"}))
    assert found.status.message.startswith("0/2 nodes are available: the job has no room.")
    assert found.rejected_by == {"Planner"}


def test_a_planner_without_a_state_for_the_pod_is_not_asked() -> None:
    Planner.asked = 0
    Desk(Planner).nodes("a").place(pod("p"))
    assert Planner.asked == 0


class Preferring(PreFilterPlugin[tuple[str, ...] | None], PreferNodesPlugin[tuple[str, ...] | None]):
    name = "Preferring"

    def class_key(self, pod: PodInfo) -> Hashable:
        return self.prepare(pod)

    def prepare(self, pod: PodInfo) -> tuple[str, ...] | None:
        names = pod.pod.metadata.annotations.get("prefer")
        return tuple(names.split(",")) if names else None

    def pre_filter(self, state: tuple[str, ...] | None) -> PreFilterResult:
        return PreFilterResult()

    def prefer_nodes(
        self, state: tuple[str, ...] | None, pod: PodInfo, result: PreFilterResult
    ) -> PreferredNodes:
        assert state is not None
        return PreferredNodes(SUCCESS, state)


@pytest.mark.parametrize(
    ("prefer", "node"),
    [
        pytest.param("b,a", "b", id="the first that passes"),
        pytest.param("gone,full,b", "b", id="unknown and full ones are passed over"),
        pytest.param("full", "a", id="none passes: as if nothing had been preferred"),
    ],
)
def test_preferred_nodes_are_tried_in_order_before_the_others(prefer: str, node: str) -> None:
    desk = Desk(Preferring).nodes("a", cpu="32").nodes("b", cpu="4").nodes("full", cpu="500m")
    wanted = pod("p")
    wanted["metadata"]["annotations"] = {"prefer": prefer}
    assert desk.place(wanted) == node


class PreferringToo(Preferring):
    name = "PreferringToo"


def test_the_first_plugin_that_prefers_nodes_counts_and_the_others_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        desk = Desk(Preferring, PreferringToo)
    assert desk.profile.extensions.prefer_nodes is desk.plugin("Preferring")
    ignored = [record.plugin for record in caplog.records if "chooses nodes" in record.message]
    assert ignored == ["PreferringToo", "SchedulingHint"]


class Growing(ReservePlugin[None], ResizePodPlugin[None]):
    """Adds a core to each pod once its node is known."""

    name = "Growing"

    def resize(self, state: None, pod: PodInfo, node_name: str) -> PodInfo | Status:
        if node_name == "refused":
            return unschedulable("not here")
        return pod.holding({column: amount + 1_000 for column, amount in pod.requests})


def test_a_pod_is_counted_as_it_was_resized_when_the_gate_is_on() -> None:
    for gates, milli in (("ResizePod=true", 2_000), ("", 1_000)):
        desk = Desk(Growing, gates=gates).nodes("a")
        desk.place(pod("p", memory=None))
        assert desk.table.requested[0, desk.table.row_of("a") or 0] == milli


def test_a_refused_resize_ends_the_attempt() -> None:
    found = Desk(Growing, gates="ResizePod=true").nodes("refused").refuse(pod("p"))
    assert (found.status.message, found.rejected_by) == ("not here", {"Growing"})


class Booking(ReservePlugin[None]):
    """Fails or raises at the last moment, on demand."""

    name = "Booking"
    undone: ClassVar[list[str]] = []
    forgotten: ClassVar[list[tuple[str, str]]] = []

    def __init__(self, args: Any, handle: Any) -> None:
        super().__init__(args, handle)
        handle.on_forget(lambda pod, node: self.forgotten.append((pod.key, node)))

    def reserve(self, state: None, pod: PodInfo, row: int) -> Status:
        if pod.pod.metadata.name == "raising":
            raise RuntimeError("a bug")
        return unschedulable("not today")

    def unreserve(self, state: None, pod: PodInfo, node_name: str) -> None:
        self.undone.append(pod.key)
        if pod.pod.metadata.name == "raising":
            raise RuntimeError("another bug")


def test_a_placement_that_fails_is_undone_as_a_whole_even_when_plugins_raise() -> None:
    Booking.undone.clear()
    Booking.forgotten.clear()
    desk = Desk(Booking).nodes("a")

    desk.refuse(pod("p"))
    with pytest.raises(RuntimeError, match="a bug"):
        desk.run(pod("raising"))

    assert Booking.undone == ["default/p", "default/raising"]
    assert Booking.forgotten == [("default/p", "a"), ("default/raising", "a")]
    assert desk.table.assumed_count == 0


class Unkeyed(FilterPlugin[str]):
    """Looks at the pod's name, and does not say so."""

    name = "Unkeyed"

    def prepare(self, pod: PodInfo) -> str:
        return pod.pod.metadata.name

    def filter(self, state: str, rows: Rows) -> ReasonCodes:
        wanted = self.handle.table.row_of(state)
        return (rows != wanted).astype(np.uint16)

    def refusal(self, state: str, code: int) -> Status:
        return unresolvable("node(s) have another name")


def test_a_plugin_that_does_not_say_what_it_looks_at_has_its_pods_evaluated_one_by_one() -> None:
    desk = Desk(Unkeyed).nodes("a", "b", "c")
    assert [desk.place(pod(name)) for name in ("b", "a", "c")] == ["b", "a", "c"]


KINDS = st.sampled_from(("tenant", "stranger", "gone"))


@settings(max_examples=25, deadline=None)
@given(
    kinds=st.lists(KINDS, min_size=1, max_size=12), rooms=st.lists(st.integers(1, 4), min_size=4, max_size=4)
)
def test_sharing_evaluations_changes_nothing_where_transformers_show_other_nodes(
    kinds: list[str], rooms: list[int]
) -> None:
    def placements(classes_max: int) -> list[str]:
        desk = Desk(GivingBack, classes_max=classes_max).nodes("a", "b", "c", "d")
        for name, cores in zip("abcd", rooms, strict=True):
            desk.table.assign(desk.info(keeping(f"room-{name}", "t", str(cores))), name)
        found = []
        for number, kind in enumerate(kinds):
            if kind == "gone":
                desk.table.unassign(f"p{number - 2}")
                continue
            wanted = tenant_pod(f"p{number}", "t", "1") if kind == "tenant" else pod(f"p{number}", cpu="1")
            placed = desk.run(wanted)
            found.append(placed.node_name if isinstance(placed, Placed) else placed.status.message)
        return found

    assert placements(16_384) == placements(0)
