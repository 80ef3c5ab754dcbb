"""What the quota webhooks know: right after a request, through slow and old news, and with several instances."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api import labels, resource_list
from koordinator.api.core import Event
from koordinator.api.sigs import ElasticQuota
from koordinator.manager.quota.tree import QuotaTree, quota_info
from koordinator.manager.webhooks import quota_admission
from koordinator.manager.webhooks.quota_topology import NOTE_S
from tests.manager.quota.builders import quota_body
from tests.manager.webhooks.quota_instances import Instance, run


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


def test_what_two_instances_allow_at_the_same_moment_is_reported_when_it_contradicts_itself() -> None:
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
