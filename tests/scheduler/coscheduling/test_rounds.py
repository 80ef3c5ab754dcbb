"""The state machine of gangs: all or nothing."""

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.sigs import PodGroup
from koordinator.scheduler.plugins.coscheduling.events import EndReason, GateReason, PermitReason
from koordinator.scheduler.plugins.coscheduling.rounds import GangRounds

GANG = "pod-group.scheduling.sigs.k8s.io"
GROUPS = "gang.scheduling.koordinator.sh/groups"
MODE = "gang.scheduling.koordinator.sh/mode"


def pod(name: str, gang: str = "g", node: str = "", uid: str = "") -> Pod:
    body: dict[str, Any] = {"metadata": {"namespace": "d", "name": name, "uid": uid, "labels": {GANG: gang}}}
    body["spec"] = {"nodeName": node} if node else {}
    return from_builtins(body, Pod)


def pod_group(name: str = "g", minimum: int = 2, **annotations: str) -> PodGroup:
    meta = {"namespace": "d", "name": name, "annotations": annotations}
    return from_builtins({"metadata": meta, "spec": {"minMember": minimum}}, PodGroup)


def gang_of(minimum: int, names: list[str], **annotations: str) -> tuple[GangRounds, dict[str, Pod]]:
    rounds = GangRounds()
    rounds.on_pod_group_add(pod_group("g", minimum, **annotations))
    pods = {f"d/{name}": pod(name) for name in names}
    for each in pods.values():
        rounds.on_pod_add(each)
    return rounds, pods


class Cluster:
    """Plays the scheduler around the state machine: a few slots, faults by chance."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rounds = GangRounds()
        self.minimum = {"g": self.rng.randint(1, 4), "h": self.rng.randint(1, 3)}
        together = '["d/g","d/h"]'
        for name, minimum in self.minimum.items():
            self.rounds.on_pod_group_add(pod_group(name, minimum, **{GROUPS: together}))
        self.pods: dict[str, Pod] = {}
        for name, minimum in self.minimum.items():
            for number in range(minimum + self.rng.randint(0, 2)):
                each = pod(f"{name}{number}", name)
                self.pods[each.key] = each
                self.rounds.on_pod_add(each)
        self.waiting: set[str] = set()
        self.released: set[str] = set()
        self.slots = self.rng.randint(0, len(self.pods) + 1)

    def run(self, cycles: int) -> None:
        for _ in range(cycles):
            self.cycle()
            if self.waiting and self.rng.random() < 0.1:
                self.give_back([self.rng.choice(sorted(self.waiting))])  # a timeout

    def cycle(self) -> None:
        found = self.rounds.next_pod()
        self.give_back(found.rejected)
        key = found.pod or self.popped()
        if not key:
            return
        begun = self.rounds.begin(self.pods[key])
        self.give_back(begun.ended.rejected)
        if not begun.gate.is_open or len(self.waiting | self.released) >= self.slots:
            is_root_cause = begun.gate.is_open
            self.give_back(
                self.rounds.filter_failed(self.pods[key], "no room", is_root_cause=is_root_cause).rejected
            )
            return
        answer = self.rounds.permit(self.pods[key])
        if answer.reason is PermitReason.WAIT:
            self.waiting.add(key)
            return
        self.released |= {key, *answer.allowed}
        self.waiting -= set(answer.allowed)

    def popped(self) -> str:
        """Any pod that may enter the queue."""
        idle = sorted(self.pods.keys() - self.waiting - self.released)
        self.rng.shuffle(idle)
        return next((key for key in idle if self.rounds.pre_enqueue(self.pods[key]).is_open), "")

    def give_back(self, keys: Any) -> None:
        todo = list(keys)
        while todo:
            key = todo.pop()
            assert key in self.waiting, key
            self.waiting.remove(key)
            todo += self.rounds.unreserve(self.pods[key]).rejected


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_gang_is_ever_released_by_half(seed: int) -> None:
    cluster = Cluster(seed)

    cluster.run(40)

    if cluster.released:
        for name, minimum in cluster.minimum.items():
            assert sum(key.startswith(f"d/{name}") for key in cluster.released) >= minimum


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_pods_that_wait_are_those_that_the_gangs_know_to_wait(seed: int) -> None:
    cluster = Cluster(seed)

    cluster.run(25)

    known = {key for gang in cluster.rounds.cache.gangs().values() for key in gang.waiting}
    assert known == cluster.waiting | cluster.released


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_group_that_fits_is_released_in_the_end(seed: int) -> None:
    cluster = Cluster(seed)
    cluster.slots = len(cluster.pods)

    for _ in range(200):
        cluster.cycle()

    assert cluster.released


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_member_is_in_one_place_only(seed: int) -> None:
    cluster = Cluster(seed)

    cluster.run(30)

    for gang in cluster.rounds.cache.gangs().values():
        assert not gang.pending.keys() & gang.waiting
        assert gang.pending.keys() | gang.waiting | gang.bound == set(gang.children)


def test_a_pod_that_was_deleted_during_its_cycle_holds_no_place() -> None:
    rounds, pods = gang_of(2, ["a", "b", "c"])
    rounds.begin(pods["d/a"])
    rounds.cache.remove_member("d/g", pods["d/a"])

    assert rounds.permit(pods["d/a"]).reason is PermitReason.GANG_UNKNOWN
    assert rounds.permit(pods["d/b"]).reason is PermitReason.WAIT
    assert rounds.permit(pods["d/c"]).reason is PermitReason.RELEASED, "and nothing fails of it"


def test_members_beyond_the_minimum_are_woken_when_the_gang_is_released() -> None:
    rounds, pods = gang_of(2, ["a", "b", "c"])
    rounds.begin(pods["d/a"])
    rounds.permit(pods["d/a"])
    rounds.begin(pods[rounds.next_pod().pod])

    answer = rounds.permit(pods["d/b"])

    assert answer.allowed == ("d/a",)
    assert answer.ended.one_of == ("d/c",)


def test_another_member_is_woken_when_the_one_that_failed_the_round_is_deleted() -> None:
    rounds, pods = gang_of(2, ["a", "b", "c"])
    rounds.begin(pods["d/a"])
    rounds.filter_failed(pods["d/a"], "no room", is_root_cause=True)
    while not (last := rounds.next_pod()).ended:
        continue
    assert last.one_of == ()

    assert rounds.on_pod_delete(pods["d/a"]).one_of == ("d/b", "d/c")


def test_another_member_is_woken_at_the_end_of_a_round_when_the_one_that_failed_it_is_gone() -> None:
    rounds, pods = gang_of(2, ["a", "b", "c"])
    rounds.begin(pods["d/a"])
    rounds.filter_failed(pods["d/a"], "no room", is_root_cause=True)

    assert rounds.on_pod_delete(pods["d/a"]).one_of == ()
    while not (last := rounds.next_pod()).ended:
        continue
    assert last.one_of == ("d/b", "d/c")


def test_a_round_that_another_group_interrupts_gives_its_places_back() -> None:
    rounds, pods = gang_of(2, ["a", "b"])
    rounds.begin(pods["d/a"])
    rounds.permit(pods["d/a"])
    rounds.on_pod_group_add(pod_group("other", 1))
    other = pod("x", "other")
    rounds.on_pod_add(other)

    begun = rounds.begin(other)

    assert begun.has_started
    assert begun.ended.ended is EndReason.OTHER_GROUP
    assert begun.ended.rejected == ("d/a",)


def test_a_round_closes_the_gate_to_its_own_group_only() -> None:
    rounds, pods = gang_of(2, ["a", "b", "c"])
    rounds.begin(pods["d/a"])
    rounds.on_pod_group_add(pod_group("other", 1))
    other = pod("x", "other")
    rounds.on_pod_add(other)

    assert rounds.look(pods["d/b"]).reason is GateReason.ROUND_RUNNING
    assert rounds.look(other).is_open


def test_a_gang_follows_its_list_of_groups() -> None:
    rounds, pods = gang_of(1, ["a"])
    rounds.on_pod_group_add(pod_group("h", 1))
    rounds.on_pod_group_update(pod_group("g", 1, **{GROUPS: '["d/g","d/h"]'}))

    gate = rounds.pre_enqueue(pods["d/a"])

    assert gate.reason is GateReason.INCOMPLETE
    assert "memberGangs [d/g d/h] child pod not collect enough" in gate.message


def test_a_member_of_a_lenient_gang_gives_back_its_own_place_only() -> None:
    rounds, pods = gang_of(3, ["a", "b", "c"], **{MODE: "NonStrict"})
    for key in ("d/a", "d/b"):
        rounds.begin(pods[key])
        rounds.permit(pods[key])

    assert rounds.unreserve(pods["d/a"]).rejected == ()


def test_ten_thousand_members_are_tried_once_each() -> None:
    names = [f"m{number:05}" for number in range(10_000)]
    rounds, pods = gang_of(10_000, names)
    rounds.begin(pods["d/m00000"])

    order = [rounds.next_pod().pod for _ in range(9_999)]

    assert order == [f"d/{name}" for name in names[1:]]
    assert rounds.next_pod().ended is EndReason.ALL_TRIED


def test_a_look_at_the_gate_leaves_the_place_of_the_representative_free() -> None:
    rounds, pods = gang_of(2, ["a", "b"])

    assert rounds.look(pods["d/a"]).is_open
    assert rounds.pre_enqueue(pods["d/b"]).is_open
    assert rounds.look(pods["d/a"]).reason is GateReason.REPRESENTED


def test_a_member_that_may_not_enter_stands_for_its_group_no_longer() -> None:
    rounds, pods = gang_of(2, ["a", "b"])
    assert rounds.pre_enqueue(pods["d/a"]).is_open
    rounds.on_pod_delete(pods["d/b"])
    assert rounds.pre_enqueue(pods["d/a"]).reason is GateReason.INCOMPLETE
    assert rounds.pre_enqueue(pod("x", "unknown")).reason is GateReason.GANG_UNKNOWN

    rounds.on_pod_add(pod("c"))

    assert rounds.pre_enqueue(pod("c")).is_open
    assert rounds.pre_enqueue(pods["d/a"]).reason is GateReason.REPRESENTED


def test_members_that_a_gang_lacks_are_tried_before_those_beyond_the_minimum_of_another() -> None:
    rounds = GangRounds()
    groups = {GROUPS: '["d/a","d/b"]', "gang.scheduling.koordinator.sh/match-policy": "waiting-and-running"}
    for name, minimum in (("a", 1), ("b", 2)):
        rounds.on_pod_group_add(pod_group(name, minimum, **groups))
    for name, node in (("a0", "n"), ("a1", ""), ("a2", ""), ("b0", ""), ("b1", ""), ("b2", "")):
        rounds.on_pod_add(pod(name, name[0], node))

    rounds.begin(pod("b0", "b"))
    order = []
    while (found := rounds.next_pod()).pod:
        order.append(found.pod)

    assert order == ["d/b1", "d/a1", "d/a2", "d/b2"]


def test_a_member_that_gives_its_place_back_late_is_tried_in_the_next_round_too() -> None:
    rounds, pods = gang_of(3, ["a", "b", "c"])
    rounds.begin(pods["d/a"])
    rounds.permit(pods["d/a"])
    assert rounds.next_pod().pod == "d/b"
    rounds.permit(pods["d/b"])
    assert rounds.next_pod().pod == "d/c"
    assert rounds.filter_failed(pods["d/c"], "full", is_root_cause=True).rejected == ("d/a", "d/b")
    assert rounds.next_pod().ended is EndReason.ALL_TRIED
    rounds.unreserve(pods["d/a"])

    rounds.begin(pods["d/a"])
    rounds.permit(pods["d/a"])
    assert rounds.next_pod().pod == "d/c"
    rounds.unreserve(pods["d/b"])
    rounds.permit(pods["d/c"])

    assert rounds.next_pod().pod == "d/b"


def test_only_members_that_are_bound_together_are_marked() -> None:
    rounds, pods = gang_of(2, ["a", "b", "c"])
    for key in ("d/a", "d/b"):
        rounds.begin(pods[key])
        rounds.permit(pods[key])
    marks = [rounds.binding_mark(pods[key]) for key in sorted(pods)]
    assert marks[0] == marks[1] and marks[0][0] and marks[0][1] == 2
    assert marks[2] == ("", 0), "one that comes later"

    alone, member = gang_of(1, ["a"])
    alone.begin(member["d/a"])
    alone.permit(member["d/a"])
    assert alone.binding_mark(member["d/a"]) == ("", 0)
    assert alone.binding_mark(pod("x", "unknown")) == ("", 0)


def test_old_news_of_a_member_that_is_bound_do_not_unbind_it() -> None:
    rounds, pods = gang_of(2, ["a", "b"])
    for each in pods.values():
        rounds.begin(each)
        rounds.permit(each)
    for each in pods.values():
        rounds.post_bind(each)

    rounds.on_pod_update(pods["d/a"])  # from before the binding

    gang = rounds.cache.get("d/g")
    assert gang is not None and gang.group.once_satisfied
    assert (sorted(gang.bound), list(gang.pending)) == (["d/a", "d/b"], [])


def test_another_pod_by_the_name_of_a_bound_member_has_no_place() -> None:
    rounds = GangRounds()
    rounds.on_pod_group_add(pod_group("g", 1))
    rounds.on_pod_add(pod("a", node="n", uid="1"))

    rounds.on_pod_update(pod("a", uid="2"))

    gang = rounds.cache.get("d/g")
    assert gang is not None and not gang.group.once_satisfied
    assert (sorted(gang.bound), list(gang.pending)) == ([], ["d/a"])


def test_all_gangs_of_a_group_wait_as_long_as_one_of_them_holds_places() -> None:
    rounds = GangRounds()
    for name in ("a", "b"):
        rounds.on_pod_group_add(pod_group(name, 1, **{GROUPS: '["d/a","d/b"]'}))
        rounds.on_pod_add(pod(f"{name}1", name))
    rounds.begin(pod("a1", "a"))
    rounds.permit(pod("a1", "a"))
    rounds.unreserve(pod("a1", "a"))

    rounds.permit(pod("b1", "b"))

    gang = rounds.cache.get("d/a")
    assert gang is not None
    assert gang.group.waiting_gangs == {"d/a", "d/b"}
