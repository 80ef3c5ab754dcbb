"""What the quota webhooks know: right after a request, through slow and old news, and with several instances."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator import clock as clocks
from koordinator.api import crd, labels, resource_list
from koordinator.api.apiextensions import CustomResourceDefinition
from koordinator.api.core import Event, Namespace
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory
from koordinator.local import registry
from koordinator.manager.metrics import ManagerMetrics
from koordinator.manager.quota.tree import QuotaTree, quota_info
from koordinator.manager.quota.validation import QuotaRules
from koordinator.manager.quota.weight_metric import SharedWeightMetric
from koordinator.manager.webhooks import quota_admission
from koordinator.manager.webhooks.quota_topology import NOTE_S, QuotaTopology
from koordinator.manager.webhooks.review import AdmissionRequest, GroupVersionResource, Verdict
from koordinator.simulate import virtual_time
from tests.manager.quota.builders import quota_body
from tests.manager.quota.distant import Cluster

MANIFESTS = [m for m in crd.manifests() if m["spec"]["names"]["kind"] == "ElasticQuota"]
RESOURCE = GroupVersionResource(resource="elasticquotas")
Body = dict[str, Any]


class Instance:
    """One instance of the manager, and users whose requests reach this one."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.factory = InformerFactory(cluster, random.Random(0))
        self.events = EventRecorder(cluster, "koord-manager", rng=random.Random(0))
        self.topology = QuotaTopology(self.factory, cluster.clock)
        self.metrics = ManagerMetrics(cluster.clock)
        look_up = quota_admission.ParentLookUp(cluster, self.topology)
        self.mutating = quota_admission.QuotaMutatingHandler(self.topology, look_up)
        self.validating = quota_admission.QuotaValidatingHandler(self.topology, QuotaRules(), look_up)
        quota_admission.ConflictWatch(self.topology, QuotaRules(), self.events)
        SharedWeightMetric(self.factory, self.metrics.quota_shared_weight)

    async def ask(
        self, operation: str, body: Body | None, old: Body | None = None, *, dry_run: bool = False
    ) -> Verdict:
        """The verdict alone: nothing is stored."""
        metadata = (body or old or {})["metadata"]
        request = AdmissionRequest(
            resource=RESOURCE,
            operation=operation,
            name=metadata["name"],
            namespace=metadata["namespace"],
            object=body,
            old_object=old,
            dry_run=dry_run,
        )
        if operation == "CREATE":
            completed = await self.mutating(request)
            if not completed.allowed:
                return completed
            request = msgspec.structs.replace(request, object=completed.obj)
        return await self.validating(request)

    async def create(self, body: Body, *, stored: bool = True) -> str:
        """Why it is refused; empty when it was allowed (and stored, unless something else refuses it)."""
        verdict = await self.ask("CREATE", body)
        if verdict.allowed and stored:
            await self.cluster.create(ElasticQuota, body, body["metadata"]["namespace"])
        return verdict.message

    async def update(self, body: Body, *, stored: bool = True) -> str:
        old = await self.stored(body["metadata"]["name"], body["metadata"]["namespace"])
        verdict = await self.ask("UPDATE", body, old)
        if verdict.allowed and stored:
            metadata = {}
            for field in ("labels", "annotations"):
                gone: Body = dict.fromkeys(old["metadata"].get(field, {}))
                metadata[field] = gone | body["metadata"][field]
            patch = {"metadata": metadata, "spec": body["spec"]}
            name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
            await self.cluster.patch(ElasticQuota, name, patch, namespace)
        return verdict.message

    async def delete(self, name: str, namespace: str = "quotas", *, stored: bool = True) -> str:
        verdict = await self.ask("DELETE", None, await self.stored(name, namespace))
        if verdict.allowed and stored:
            await self.cluster.delete(ElasticQuota, name, namespace)
        return verdict.message

    async def stored(self, name: str, namespace: str = "quotas") -> Body:
        path = f"/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/{namespace}/elasticquotas/{name}"
        return await self.cluster.request("GET", path)


def run(scenario: Callable[..., Awaitable[None]], *, instances: int = 1) -> None:
    """A scenario with some instances on one API server, all caches filled."""

    async def main(clock: clocks.LoopClock) -> None:
        backend = registry.in_memory(clock, checks=False)
        found = [Instance(Cluster(backend, random.Random(0))) for _ in range(instances)]
        cluster = found[0].cluster
        for manifest in MANIFESTS:
            await cluster.create(CustomResourceDefinition, manifest)
        for name in ("quotas", "elsewhere"):
            await cluster.create(Namespace, {"metadata": {"name": name}})
        async with asyncio.TaskGroup() as group:
            telling = [group.create_task(each.events.run()) for each in found]
            for each in found:
                each.factory.start(group)
                await each.factory.wait_synced()
            await scenario(*found)
            for task in telling:
                task.cancel()
            for each in found:
                await each.factory.stop()

    virtual_time.run_virtual(main)


def test_old_news_do_not_undo_what_was_allowed_since() -> None:
    async def scenario(one: Instance) -> None:
        assert await one.create(quota_body("team", is_parent=True, low={"cpu": "10"})) == ""
        await asyncio.sleep(1)
        one.cluster.news_s = 5.0
        note = {"metadata": {"annotations": {"scheduler": "was here"}}}
        await one.cluster.patch(ElasticQuota, "team", note, "quotas")
        assert await one.update(quota_body("team", is_parent=True, low={"cpu": "4"}), stored=False) == ""

        await asyncio.sleep(6)  # the note of the scheduler arrives

        assert "brothers" in await one.create(quota_body("web", "team", low={"cpu": "5"}))
        await asyncio.sleep(NOTE_S)
        assert await one.create(quota_body("web", "team", low={"cpu": "5"})) == ""

    run(scenario)


def test_a_quota_that_is_made_anew_is_not_deleted_by_news_of_its_predecessor() -> None:
    async def scenario(one: Instance) -> None:
        assert await one.create(quota_body("team", is_parent=True)) == ""
        await asyncio.sleep(1)
        one.cluster.news_s = 5.0
        assert await one.delete("team") == ""
        assert "parent not exist" in (await one.ask("CREATE", quota_body("web", "team"))).message
        await asyncio.sleep(2)
        assert await one.create(quota_body("team", is_parent=True)) == ""
        await asyncio.sleep(4)  # the deletion arrives, the creation does not yet
        one.cluster.offline = True  # nobody can be asked about parents
        assert await one.create(quota_body("web", "team")) == ""

    run(scenario)


def test_requests_that_reach_another_instance_before_the_news_are_answered_as_by_the_first() -> None:
    async def scenario(one: Instance, two: Instance) -> None:
        two.cluster.news_s = 10.0
        assert await one.create(quota_body("team", is_parent=True, low={"cpu": "10"})) == ""
        assert await two.create(quota_body("web", "team", low={"cpu": "6"})) == ""
        assert await two.update(quota_body("web", "team", low={"cpu": "7"})) == ""
        assert await one.delete("web") == ""
        assert await two.update(quota_body("team", is_parent=True, low={"cpu": "9"})) == ""
        abroad = quota_body("abroad", is_parent=True)
        abroad["metadata"]["namespace"] = "elsewhere"
        assert await one.create(abroad) == ""
        assert await two.create(quota_body("child", "abroad")) == ""
        assert "not exist" in await two.create(quota_body("lost", "nobody"))

    run(scenario, instances=2)


def test_a_parent_that_was_changed_through_another_instance_counts_as_it_is() -> None:
    async def scenario(one: Instance, two: Instance) -> None:
        assert await one.create(quota_body("team", is_parent=True, low={"cpu": "10"})) == ""
        await asyncio.sleep(1)
        two.cluster.news_s = 10.0
        assert await one.update(quota_body("team", is_parent=True, low={"cpu": "20"})) == ""
        assert await two.create(quota_body("web", "team", low={"cpu": "15"})) == ""
        assert "brothers" in await two.create(quota_body("db", "team", low={"cpu": "6"}))
        assert await two.create(quota_body("db", "team", low={"cpu": "5"})) == ""

    run(scenario, instances=2)


def test_repeated_refusals_read_the_parent_only_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(one: Instance) -> None:
        asked: list[str] = []
        get = one.cluster.get

        async def counted(view: Any, name: str, namespace: str = "") -> Any:
            asked.append(name)
            return await get(view, name, namespace)

        monkeypatch.setattr(one.cluster, "get", counted)
        assert await one.create(quota_body("team", is_parent=True, low={"cpu": "1"})) == ""
        for _ in range(200):
            assert "brothers" in await one.create(quota_body("web", "team", low={"cpu": "2"}))
        assert len(asked) == quota_admission.LOOK_UPS.burst
        await asyncio.sleep(1)
        assert "brothers" in await one.create(quota_body("web", "team", low={"cpu": "2"}))
        assert len(asked) == quota_admission.LOOK_UPS.burst + 1

    run(scenario)


def test_a_request_about_a_quota_teaches_how_it_is_even_if_it_is_refused() -> None:
    async def scenario(one: Instance, two: Instance) -> None:
        assert await one.create(quota_body("team", is_parent=True, low={"cpu": "10"})) == ""
        assert await one.create(quota_body("web", "team", low={"cpu": "6"})) == ""
        await asyncio.sleep(1)
        two.cluster.news_s = 10.0
        assert await one.update(quota_body("web", "team", low={"cpu": "1"})) == ""
        assert "brothers" in await two.create(quota_body("db", "team", low={"cpu": "9"}))
        assert "brothers" in await two.update(quota_body("web", "team", low={"cpu": "11"}))
        assert await two.create(quota_body("db", "team", low={"cpu": "9"})) == ""

    run(scenario, instances=2)


def test_a_quota_that_exists_counts_before_one_of_its_name_that_may_never() -> None:
    async def scenario(one: Instance) -> None:
        assert await one.create(quota_body("web"), stored=False) == ""
        twin = quota_body("web")
        twin["metadata"]["namespace"] = "elsewhere"
        await one.cluster.create(ElasticQuota, twin, "elsewhere")
        await asyncio.sleep(1)
        known = one.topology.tree.get("web")
        assert known is not None and known.key == "elsewhere/web"

    run(scenario)


def test_each_phantom_goes_in_its_time() -> None:
    async def scenario(one: Instance) -> None:
        assert await one.create(quota_body("a")) == ""
        await asyncio.sleep(1)
        for low in ("1", "2"):
            assert await one.update(quota_body("a", low={"cpu": low}), stored=False) == ""
            await asyncio.sleep(5)
            assert await one.create(quota_body(f"b{low}"), stored=False) == ""
            await asyncio.sleep(5)
        await asyncio.sleep(NOTE_S - 13)
        assert {info.name: info.min for info in one.topology.tree} == {
            "a": resource_list.of({"cpu": "2"}),
            "b2": {},
        }
        await asyncio.sleep(10)
        assert {info.name: info.min for info in one.topology.tree} == {"a": {}}

    run(scenario)


def test_what_two_instances_allow_at_the_same_moment_is_told_when_it_contradicts_itself() -> None:
    async def scenario(one: Instance, two: Instance) -> None:
        assert await one.create(quota_body("team", is_parent=True, low={"cpu": "10"})) == ""
        await asyncio.sleep(1)
        one.cluster.news_s = two.cluster.news_s = 1.0
        assert await one.create(quota_body("web", "team", low={"cpu": "6"})) == ""
        assert await two.create(quota_body("db", "team", low={"cpu": "6"})) == ""
        assert "brothers" in await two.update(quota_body("db", "team", low={"cpu": "11"}))
        await asyncio.sleep(3)

        (event,) = (await one.cluster.list(Event, "quotas")).items
        assert (event.reason, event.type) == ("QuotaTreeConflict", "Warning")
        assert event.involved_object.name == "db"
        assert "checkMinQuotaSum all brothers' MinQuota > parent MinQuota, parent: team" in event.message

    run(scenario, instances=2)


def test_one_of_two_quotas_with_one_name_counts_and_the_other_may_go() -> None:
    async def scenario(one: Instance) -> None:
        assert await one.create(quota_body("team", is_parent=True)) == ""
        assert await one.create(quota_body("web", "team")) == ""
        twin = quota_body("team")
        twin["metadata"]["namespace"] = "elsewhere"
        await one.cluster.create(ElasticQuota, twin, "elsewhere")  # while the webhook was not there
        await asyncio.sleep(1)

        known = one.topology.tree.get("team")
        assert known is not None and known.key == "quotas/team"
        changed = await one.ask(
            "UPDATE", {**twin, "spec": {"max": {}}}, await one.stored("team", "elsewhere")
        )
        assert changed.allowed and "elsewhere/team does not count" in changed.warnings[0]
        assert await one.update(quota_body("team", is_parent=True, low={"cpu": "1"}), stored=False) == ""
        noted = one.topology.tree.get("team")
        assert await one.delete("team", "elsewhere") == ""
        await asyncio.sleep(1)
        assert one.topology.tree.get("team") == noted != known
        assert "child quotas" in await one.delete("team")

    run(scenario)


def test_the_other_quota_of_a_name_counts_once_the_first_is_gone() -> None:
    async def scenario(one: Instance) -> None:
        assert await one.create(quota_body("team")) == ""
        await asyncio.sleep(1)
        twin = quota_body("team")
        twin["metadata"]["namespace"] = "elsewhere"
        await one.cluster.create(ElasticQuota, twin, "elsewhere")
        assert await one.delete("team") == ""
        await asyncio.sleep(1)

        known = one.topology.tree.get("team")
        assert known is not None and known.key == "elsewhere/team"

    run(scenario)


def test_a_quota_whose_amounts_are_none_can_be_mended_and_deleted() -> None:
    async def scenario(one: Instance) -> None:
        for name in ("mended", "deleted"):
            await one.cluster.create(ElasticQuota, quota_body(name, high={"cpu": "many"}), "quotas")
        await asyncio.sleep(1)
        refusal = await one.update(quota_body("mended", high={"cpu": "more"}))
        assert "quotas/mended: spec.max.cpu: 'more' is not a quantity" in refusal
        assert await one.update(quota_body("mended", high={"cpu": "5"})) == ""
        assert await one.delete("deleted") == ""
        assert one.topology.tree.get("mended") is not None

    run(scenario)


def test_a_refusal_names_quota_field_and_rule() -> None:
    async def scenario(one: Instance) -> None:
        assert await one.create(quota_body("team", is_parent=True, low={"cpu": "10"})) == ""
        refused = await one.create(quota_body("web", "team", low={"cpu": "11"}))
        orphan = await one.create(quota_body("web", "nobody"))

        assert refused == (
            "checkMinQuotaSum all brothers' MinQuota > parent MinQuota, parent: team: cpu 11 > 10 "
            "(ElasticQuota quotas/web, spec.min, rule min-sum-brothers)"
        )
        assert orphan == (
            "fill quota web failed, parent not exist: nobody "
            f"(ElasticQuota quotas/web, {labels.QUOTA_PARENT}, rule parent-missing)"
        )

    run(scenario)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        pytest.param("{", "shared-weight", id="no JSON"),
        pytest.param('{"cpu": "heavy"}', "shared-weight", id="no amount"),
        pytest.param('{"cpu": "-1"}', "shared-weight-negative", id="negative"),
        pytest.param('{"cpu": "2"}', "", id="a weight"),
    ],
)
def test_a_shared_weight_is_checked_even_if_nothing_else_changes(text: str, rule: str) -> None:
    async def scenario(one: Instance) -> None:
        body = quota_body("web")
        assert await one.create(body) == ""
        body["metadata"]["annotations"][labels.QUOTA_SHARED_WEIGHT] = text
        refused = await one.update(body)
        assert rule in refused if rule else refused == ""

    run(scenario)


def test_an_unreadable_weight_from_before_holds_up_no_other_change_of_annotations() -> None:
    async def scenario(one: Instance) -> None:
        body = quota_body("web")
        body["metadata"]["annotations"][labels.QUOTA_SHARED_WEIGHT] = "{"
        await one.cluster.create(ElasticQuota, body, "quotas")
        body["metadata"]["annotations"]["note"] = "mine"
        assert await one.update(body) == ""

    run(scenario)


def test_what_is_hardly_meant_is_allowed_with_a_warning() -> None:
    async def scenario(one: Instance) -> None:
        assert await one.create(quota_body("team", is_parent=True, high={"cpu": "10"})) == ""
        verdict = await one.ask("CREATE", quota_body("web", "team", high={"cpu": "11"}))

        assert verdict.allowed
        (warning,) = verdict.warnings
        assert warning == ("spec.max.cpu of web (11) is above that of its parent team (10), which limits it")

    run(scenario)


def test_who_takes_an_exemption_away_hears_what_is_broken_from_then_on() -> None:
    async def scenario(one: Instance) -> None:
        forced = {labels.QUOTA_ALLOW_FORCE_UPDATE: "true"}
        assert await one.create(quota_body("team", is_parent=True, low={"cpu": "1"})) == ""
        assert await one.create(quota_body("web", "team", low={"cpu": "2"}, own=forced)) == ""
        assert await one.create(quota_body("db", "team", low={"cpu": "0"}, own=forced)) == ""

        body = quota_body("web", "team", low={"cpu": "2"})
        verdict = await one.ask("UPDATE", body, await one.stored("web"))
        assert verdict.allowed and "the next change will be refused: checkMinQuotaSum" in verdict.warnings[0]
        kept = await one.ask("UPDATE", quota_body("web", "team", low={"cpu": "2"}, own=forced), body)
        assert kept.allowed and kept.warnings == ()

    run(scenario)


def test_annotations_that_nobody_can_read_are_told() -> None:
    async def scenario(one: Instance) -> None:
        body = quota_body("web")
        body["metadata"]["annotations"] = {labels.QUOTA_NAMESPACES: "shop"}
        created = await one.ask("CREATE", body)
        assert created.allowed and "no namespace is bound to the quota" in created.warnings[0]

        await one.cluster.create(ElasticQuota, body, "quotas")
        changed = msgspec.json.decode(msgspec.json.encode(body))
        changed["metadata"]["annotations"][labels.QUOTA_ADMISSION] = "all"
        verdict = await one.ask("UPDATE", changed, await one.stored("web"))
        assert len(verdict.warnings) == 2 and labels.QUOTA_ADMISSION in verdict.warnings[1]

    run(scenario)


def test_a_dry_run_is_checked_and_changes_nothing() -> None:
    async def scenario(one: Instance) -> None:
        assert await one.create(quota_body("team", is_parent=True, low={"cpu": "10"})) == ""
        team = await one.stored("team")
        body = quota_body("web", "team", low={"cpu": "10"})
        shrunk = quota_body("team", is_parent=True, low={"cpu": "1"})
        assert (await one.ask("CREATE", body, dry_run=True)).allowed
        assert (await one.ask("UPDATE", shrunk, team, dry_run=True)).allowed
        assert (await one.ask("DELETE", None, team, dry_run=True)).allowed

        assert await one.create(body) == ""

    run(scenario)


def test_the_weight_metric_follows_quotas_whoever_admitted_them() -> None:
    async def scenario(one: Instance) -> None:
        gauge = one.metrics.quota_shared_weight
        body = quota_body("web", high={"cpu": "2500m", "memory": "1Gi"})
        await one.cluster.create(ElasticQuota, body, "quotas")
        await asyncio.sleep(1)
        assert gauge.values == {("web", "cpu"): 2.5, ("web", "memory"): 2**30}

        body["metadata"]["annotations"][labels.QUOTA_SHARED_WEIGHT] = '{"cpu": "7"}'
        assert await one.update(body) == ""
        await asyncio.sleep(1)
        assert gauge.values == {("web", "cpu"): 7.0}

        await one.cluster.delete(ElasticQuota, "web", "quotas")
        await asyncio.sleep(1)
        assert gauge.values == {}

    run(scenario)


def test_an_allowed_request_looks_at_no_siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(one: Instance) -> None:
        assert await one.create(quota_body("team", is_parent=True, low={"cpu": "10"})) == ""
        assert await one.create(quota_body("web", "team", low={"cpu": "6"})) == ""
        assert await one.create(quota_body("db", "team", low={"cpu": "1"})) == ""
        await asyncio.sleep(1)

        def never(*_: Any) -> None:
            raise AssertionError("all children were looked at")

        monkeypatch.setattr(QuotaTree, "children", never)
        assert await one.update(quota_body("db", "team", low={"cpu": "4"})) == ""
        assert await one.update(quota_body("team", is_parent=True, low={"cpu": "11"})) == ""
        assert await one.create(quota_body("new", "team", low={"cpu": "1"})) == ""
        assert await one.delete("new") == ""

    run(scenario)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["create", "update", "delete"]),
        st.sampled_from("abcd"),
        st.sampled_from(["", "a", "b"]),
        st.integers(0, 3),
        st.booleans(),
        st.sampled_from([0.0, 0.2, 3.0]),
    ),
    max_size=14,
)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_all_instances_end_with_the_tree_that_is_stored(steps: list[tuple[Any, ...]]) -> None:
    async def scenario(*instances: Instance) -> None:
        for each in instances:
            each.cluster.news_s = 0.7
        there: set[str] = set()
        for who, action, name, parent, low, stored, pause_s in steps:
            one = instances[who]
            body = quota_body(name, parent, low={"cpu": str(low)}, is_parent=name in "ab")
            if action == "create" and name not in there:
                if await one.create(body, stored=stored) == "" and stored:
                    there.add(name)
            elif action == "update" and name in there:
                await one.update(body, stored=stored)
            elif action == "delete" and name in there and await one.delete(name, stored=stored) == "":
                there -= {name} if stored else set()
            await asyncio.sleep(pause_s)
        await asyncio.sleep(NOTE_S + 10)

        expected = {quota.metadata.name: quota_info(quota) for quota in (await _all(instances[0])).items}
        assert expected.keys() == there
        for each in instances:
            assert {info.name: info for info in each.topology.tree} == expected

    run(scenario, instances=2)


LIVES = st.lists(
    st.tuples(
        st.sampled_from(["create", "create", "update", "delete"]),
        st.sampled_from("abcde"),
        st.sampled_from(["", "a", "b", "c"]),
        st.integers(0, 4),
        st.sampled_from([0.0, 0.0, 0.5, 3.0]),
    ),
    max_size=20,
)


@settings(max_examples=40, deadline=None)
@given(steps=LIVES, news_s=st.sampled_from([0.3, 2.0]))
def test_what_one_instance_lets_be_stored_is_sound_however_late_the_news(
    steps: list[tuple[Any, ...]], news_s: float
) -> None:
    async def scenario(one: Instance) -> None:
        one.cluster.news_s = news_s
        there: set[str] = set()
        for action, name, parent, low, pause_s in steps:
            body = quota_body(name, parent, low={"cpu": str(low)}, is_parent=name in "abc")
            if action == "create" and name not in there and await one.create(body) == "":
                there.add(name)
            elif action == "update" and name in there:
                await one.update(body)
            elif action == "delete" and name in there and await one.delete(name) == "":
                there.discard(name)
            await asyncio.sleep(pause_s)

        tree = QuotaTree()
        for quota in (await _all(one)).items:
            tree.put(quota_info(quota))
        for info in tree:
            assert resource_list.fits_completely(tree.children_min(info.name), info.min)
            assert info.is_parent or tree.child_count(info.name) == 0
            assert [info, *tree.ancestors(info)][-1].parent == labels.ROOT_QUOTA_NAME

    run(scenario)


def test_news_of_an_earlier_quota_do_not_hide_the_one_of_its_name() -> None:
    async def scenario(one: Instance) -> None:
        one.cluster.news_s = 2.0
        assert await one.create(quota_body("a", is_parent=True, low={"cpu": "3"})) == ""
        await asyncio.sleep(0.5)
        assert await one.create(quota_body("e")) == ""
        await asyncio.sleep(0.5)
        assert await one.delete("e") == ""
        await asyncio.sleep(1.1)  # the news of both set out
        assert await one.create(quota_body("e", "a", low={"cpu": "2"})) == ""
        assert "parentInfo" in await one.update(quota_body("e", "nobody"))
        for _ in range(12):
            await asyncio.sleep(0.5)
            assert "child quotas" in await one.delete("a")

    run(scenario)


async def _all(one: Instance) -> Any:
    return await one.cluster.list(ElasticQuota)
