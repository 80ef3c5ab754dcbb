"""What a constraint counts: absent, empty and merged selectors, as `filterTopologySpreadConstraints` reads them."""

from typing import Any

import msgspec
import pytest

from koordinator.api.core import Pod, Service
from koordinator.api.decode import from_builtins
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.scheduler.plugins.topology_spread import constraints
from koordinator.scheduler.plugins.topology_spread.constraints import (
    Constraints,
    Inclusion,
    InclusionPolicy,
    Inclusions,
    OwnerSelectors,
    SpreadArgs,
)
from koordinator.scheduler.plugins.topology_spread.plugin import DerivedConstraints
from koordinator.scheduler.table.label_columns import LabelColumns
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_counts import NamespaceLabels

ABSENT = object()
APP = {"matchLabels": {"app": "a"}}


@pytest.mark.parametrize(
    ("selector", "keys", "counts_others", "counts_self"),
    [
        pytest.param(ABSENT, [], set(), False, id="absent"),
        pytest.param(ABSENT, ["version"], set(), False, id="absent, merged"),
        pytest.param({}, [], set(), True, id="empty"),
        pytest.param({}, ["version"], {"same", "other app"}, True, id="empty, merged"),
        pytest.param({}, ["missing"], set(), True, id="empty, merged with a label that the pod has not"),
        pytest.param(APP, [], {"same", "other version"}, True, id="labels"),
        pytest.param(APP, ["version"], {"same"}, True, id="labels, merged"),
    ],
)
def test_which_pods_count(selector: Any, keys: list[str], counts_others: set[str], counts_self: bool) -> None:
    wire = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": keys}
    if selector is not ABSENT:
        wire["labelSelector"] = selector
    body = {
        "metadata": {"name": "p", "namespace": "default", "labels": {"app": "a", "version": "1"}},
        "spec": {"topologySpreadConstraints": [wire]},
    }
    [found] = constraints.of_pod(from_builtins(body, Pod)).hard
    others = {
        "same": {"app": "a", "version": "1"},
        "other app": {"app": "b", "version": "1"},
        "other version": {"app": "a", "version": "2"},
    }
    names = NamespaceLabels()
    assert {name for name, own in others.items() if found.term.means("default", own, names)} == counts_others
    assert found.is_self is counts_self


def test_what_followed_from_earlier_selectors_is_forgotten() -> None:
    derived = DerivedConstraints(size_max=3)

    def asked(namespace: str, version: int, key: str) -> Constraints:
        return derived.get(namespace, version, key, lambda: Constraints((), (), False, (version, key)))

    first = asked("a", 1, "x")
    assert asked("a", 1, "x") is first
    assert asked("a", 2, "x").key == (2, "x")
    assert len(derived) == 1

    asked("a", 2, "y")
    asked("b", 1, "x")
    assert len(derived) == 3
    assert asked("b", 1, "z").key == (1, "z")
    assert len(derived) == 1


def test_sets_of_nodes_are_kept_for_1024_node_selectors() -> None:
    table = NodeTable(ResourceRegistry())
    inclusions = Inclusions(table, table.shared(LabelColumns))
    policy = InclusionPolicy(("zone",), honors_affinity=True, honors_taints=False)

    def of(number: int) -> Inclusion:
        body = {"metadata": {"name": "p"}, "spec": {"nodeSelector": {"disk": str(number)}}}
        return inclusions.of(from_builtins(body, Pod), policy)

    first, *_ = kept = [of(number) for number in range(1_024)]
    assert [of(number) for number in range(1_024)] == kept, "equal pods share theirs"
    of(1_024)
    assert of(0) is not first


def service(name: str, **selector: str) -> Service:
    meta = {"name": name, "namespace": "default"}
    return from_builtins({"metadata": meta, "spec": {"selector": selector}}, Service)


def test_selectors_of_services_come_change_and_go() -> None:
    selectors = OwnerSelectors()
    [watch] = [each for each in selectors.watches() if each.view is Service]
    body = {"metadata": {"name": "p", "namespace": "default", "labels": {"app": "a", "tier": "web"}}}
    pod = from_builtins(body, Pod)

    def found() -> dict[str, str]:
        return {
            key: value for each in selectors.selectors_of(pod) for key, value in each.match_labels.items()
        }

    bare, first, second = service("bare"), service("first", app="a"), service("second", tier="web")
    for each in (bare, first, second):
        watch.on_add(each)
    assert found() == {"app": "a", "tier": "web"}
    version = selectors.version("default")

    watch.on_delete(bare)
    watch.on_delete(service("stranger", app="a"))
    watch.on_update(first, service("first", app="a"))
    assert selectors.version("default") == version, "nothing that anybody is selected by has changed"

    watch.on_update(first, service("first", app="b"))
    assert found() == {"tier": "web"}
    assert selectors.version("default") > version
    version = selectors.version("default")
    watch.on_delete(second)
    assert (found(), selectors.version("default") > version) == ({}, True)
    watch.on_delete(service("first", app="b"))
    assert not selectors._services


@pytest.mark.parametrize(
    ("kind", "count", "keys"),
    [
        ("System", 0, ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]),
        ("List", 0, []),
        ("List", 1, ["rack"]),
    ],
)
def test_defaults_are_the_built_in_ones_or_those_listed(kind: str, count: int, keys: list[str]) -> None:
    listed = [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway"}] * count
    args = msgspec.convert({"defaultingType": kind, "defaultConstraints": listed}, SpreadArgs)
    assert [each.topology_key for each in args.defaults] == keys


@pytest.mark.parametrize(("kind", "count"), [("System", 1), ("List", 2)])
def test_a_list_needs_its_type_and_each_key_once(kind: str, count: int) -> None:
    listed = [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway"}] * count
    with pytest.raises(msgspec.ValidationError, match="defaultConstraints"):
        msgspec.convert({"defaultingType": kind, "defaultConstraints": listed}, SpreadArgs)
