"""The CRDs are structural, say what the specification says, and fit the views in both directions."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from koordinator.api import crd, decode, defaults, kinds, schema, slo, slo_qos
from koordinator.api.crd import object_schema
from koordinator.api.meta import Object, ViewPart, to_wire
from koordinator.cli import crds as command
from koordinator.cli.main import main
from tests.api import openapi
from tests.api.walk import structs

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((Path(__file__).parent / "examples").glob("*.yaml"))
VIEWS = [view for definition in crd.DEFINITIONS for view in definition.views]


def view_id(view: type[Object]) -> str:
    return f"{view.resource.plural}.{view.resource.version}"


def example(path: Path) -> tuple[type[Object], dict[str, Any]]:
    obj = yaml.safe_load(path.read_text())
    group, _, version = obj["apiVersion"].partition("/")
    resource = kinds.by_kind(group, obj["kind"], version)
    assert resource is not None, path
    return kinds.view_of(resource), obj


def view_named(kind: str) -> type[Object]:
    return next(view for view in VIEWS if view.resource.kind == kind)


# --- Files and command ---


def test_the_committed_files_are_what_the_views_say(tmp_path: Path) -> None:
    result = CliRunner().invoke(command.crds, ["--output-dir", str(tmp_path)])

    assert result.exit_code == 0, result.output
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_text() for path in (ROOT / "deploy" / "crds").iterdir()}
    assert written == committed, "run: koordinator crds --output-dir deploy/crds"


def test_the_command_prints_all_documents_in_one_stream() -> None:
    result = CliRunner().invoke(command.crds, [])

    assert list(yaml.safe_load_all(result.output)) == crd.manifests()


@pytest.mark.parametrize("name", ["PodMigrationJob", "podmigrationjobs", "pmj", "NodeSLO"])
def test_the_command_prints_what_is_named(name: str) -> None:
    result = CliRunner().invoke(command.crds, [name])

    (manifest,) = yaml.safe_load_all(result.output)
    assert name in {manifest["spec"]["names"]["kind"], manifest["spec"]["names"]["plural"], "pmj"}


def test_the_command_refuses_unknown_names_and_says_what_there_is() -> None:
    result = CliRunner().invoke(command.crds, ["podmigration"])

    assert result.exit_code == 2
    assert "podmigrationjobs" in result.output


def test_the_command_says_why_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    result = CliRunner().invoke(main, ["crds", "--output-dir", str(tmp_path / "file" / "below")])

    assert result.exit_code == 1
    assert f"{tmp_path / 'file' / 'below'}: not a directory" in result.output


# --- Form ---


@pytest.mark.parametrize("view", VIEWS, ids=view_id)
def test_schemas_are_structural(view: type[Object]) -> None:
    problems = [
        problem
        for path, node in openapi.nodes(object_schema(view))
        for problem in openapi.structural_problems(path, node)
    ]

    assert problems == []


@pytest.mark.parametrize("view", VIEWS, ids=view_id)
def test_every_field_is_described(view: type[Object]) -> None:
    silent = [
        f"{path}.{name}"
        for path, node in openapi.nodes(object_schema(view))
        for name, member in node.get("properties", {}).items()
        if not member.get("description") and f"{path}.{name}" != ".metadata"
    ]

    assert silent == []


@pytest.mark.parametrize("view", VIEWS, ids=view_id)
def test_required_fields_are_written_even_when_they_hold_their_default(view: type[Object]) -> None:
    for struct in structs(view):
        required = schema.of_struct(struct).get("required", [])

        assert set(required) <= msgspec.to_builtins(struct()).keys(), struct


def test_a_field_without_a_schema_is_refused_by_name() -> None:
    class Odd(ViewPart, frozen=True, kw_only=True):
        member: Annotated[bytes | None, "Bytes have no place in JSON."] = None

    with pytest.raises(TypeError, match=r"Odd\.member: no schema"):
        schema.of_struct(Odd)


# --- Examples ---


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_fit_their_schema(path: Path) -> None:
    view, obj = example(path)

    assert openapi.mismatches(obj, object_schema(view)) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_survive_the_way_through_their_view(path: Path) -> None:
    view, obj = example(path)

    assert to_wire(decode.from_builtins(obj, view)) == obj


def test_every_kind_has_an_example() -> None:
    assert {example(path)[0] for path in EXAMPLES} == set(VIEWS)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("ClusterColocationProfile", ("spec", "qosClass"), ""),
        ("ClusterColocationProfile", ("spec", "probability"), [50]),
        ("NodeSLO", ("spec", "resourceUsedThresholdWithBE", "cpuSuppressThresholdPercent"), 101),
        ("NodeSLO", ("spec", "systemStrategy", "totalNetworkBandwidth"), "1C"),
        ("NodeMetric", ("spec", "metricCollectPolicy", "nodeMemoryCollectPolicy"), "all"),
        ("Reservation", ("spec", "owners"), []),
        ("Reservation", ("spec", "owners"), [{}]),
        ("Reservation", ("spec", "allocatePolicy"), "Loose"),
        ("ElasticQuota", ("spec", "min", "cpu"), "many"),
        ("PodGroup", ("spec", "minMember"), "8"),
    ],
)
def test_bad_values_are_refused(kind: str, path: tuple[str, ...], value: Any) -> None:
    view = view_named(kind)
    obj = next(obj for found, obj in map(example, EXAMPLES) if found is view)
    parent = obj
    for name in path[:-1]:
        parent = parent[name]
    parent[path[-1]] = value

    problems = openapi.mismatches(obj, object_schema(view))

    assert [problem.startswith("." + ".".join(path)) for problem in problems] == [True]


# --- Effective defaults of the strategies (behaviour/crds 2; behaviour/manager 11) ---


def test_what_the_manager_writes_when_nothing_is_configured() -> None:
    assert msgspec.to_builtins(slo.DEFAULT_NODE_SLO_SPEC) == {
        "resourceUsedThresholdWithBE": {
            "enable": False,
            "cpuSuppressThresholdPercent": 65,
            "cpuSuppressPolicy": "cpuset",
            "memoryEvictThresholdPercent": 70,
            "cpuEvictPolicy": "evictByRealLimit",
        },
        "resourceQOSStrategy": {},
        "cpuBurstStrategy": {
            "policy": "none",
            "cpuBurstPercent": 1000,
            "cfsQuotaBurstPercent": 300,
            "cfsQuotaBurstPeriodSeconds": -1,
            "sharePoolThresholdPercent": 50,
        },
        "systemStrategy": {"totalNetworkBandwidth": "0"},
    }


@pytest.mark.parametrize(
    ("qos", "identity", "expeller", "cache_end", "wmarks"),
    [
        pytest.param(slo_qos.DEFAULT_LSR_QOS, 2, True, 100, (95, 20, -25), id="LSR"),
        pytest.param(slo_qos.DEFAULT_LS_QOS, 2, True, 100, (95, 20, -25), id="LS"),
        pytest.param(slo_qos.DEFAULT_BE_QOS, -1, False, 30, (95, 20, 50), id="BE"),
        pytest.param(slo_qos.DEFAULT_SYSTEM_QOS, 0, False, 100, (0, 50, 0), id="SYSTEM"),
        pytest.param(slo_qos.NO_QOS, 0, False, 100, (0, 50, 0), id="none"),
    ],
)
def test_defaults_by_qos_class(
    qos: slo_qos.ResourceQOS, identity: int, expeller: bool, cache_end: int, wmarks: tuple[int, int, int]
) -> None:
    assert msgspec.to_builtins(qos) == {
        "cpuQOS": {"enable": False, "groupIdentity": identity, "schedIdle": 0, "coreExpeller": expeller},
        "resctrlQOS": {
            "enable": False,
            "catRangeStartPercent": 0,
            "catRangeEndPercent": cache_end,
            "mbaPercent": 100,
        },
        "memoryQOS": {
            "enable": False,
            "minLimitPercent": 0,
            "lowLimitPercent": 0,
            "throttlingPercent": 0,
            "wmarkRatio": wmarks[0],
            "wmarkScalePermill": wmarks[1],
            "wmarkMinAdj": wmarks[2],
            "priorityEnable": 0,
            "priority": 0,
            "oomKillGroup": 0,
        },
        "networkQOS": {
            "enable": False,
            "ingressRequest": 0,
            "ingressLimit": 0,
            "egressRequest": 0,
            "egressLimit": 0,
        },
        "blkioQOS": {"enable": False},
    }


# --- Objects of every installation ---


def test_priority_classes_stand_at_the_bottom_of_their_bands() -> None:
    found = {obj["metadata"]["name"]: obj["value"] for obj in defaults.priority_classes()}

    assert found == {"koord-prod": 9000, "koord-mid": 7000, "koord-batch": 5000, "koord-free": 3000}


def test_lending_and_suppression_are_on_after_installation() -> None:
    config = defaults.slo_config()

    assert config["metadata"]["labels"] == {"koordinator.sh/configmap-type": "slo-controller-config"}
    data = {key: msgspec.json.decode(text) for key, text in config["data"].items()}
    assert data == {
        "colocation-config": {"enable": True},
        "resource-threshold-config": {"clusterStrategy": {"enable": True}},
    }
    assert defaults.objects()[0]["metadata"]["name"] == config["metadata"]["namespace"]
