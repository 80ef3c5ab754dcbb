"""What a request about a quota is told: refusals, warnings, and what a dry run leaves alone."""

import asyncio
from typing import Any

import msgspec
import pytest

from koordinator.api import labels
from koordinator.api.sigs import ElasticQuota
from koordinator.manager.quota.tree import QuotaTree
from tests.manager.quota.builders import quota_body
from tests.manager.webhooks.quota_instances import Instance, run


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


def test_annotations_that_nobody_can_read_are_reported() -> None:
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
