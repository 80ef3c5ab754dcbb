"""The Helm chart renders the objects that `koordinator install` applies."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from koordinator.install import chart, objects, values
from koordinator.install.steps import LASTING_KINDS
from koordinator.install.values import Section, Values
from tests.e2e.cluster import HELM, needs_helm

CHART = Path(__file__).parents[2] / "deploy" / "chart" / "koordinator"
KUBERNETES = "1.31.0"

VALUE_SETS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "another namespace, made by others": {
        "installation": {"namespace": "elsewhere", "createNamespace": False}
    },
    "everything on": {
        "deviceDaemon": {"enabled": True},
        "yarnCopilot": {"enabled": True},
        "metrics": {
            "serviceMonitor": {"enabled": True, "interval": "10s", "labels": {"release": "prometheus"}},
            "dashboards": {"enabled": True, "labels": {"folder": "koordinator"}},
        },
    },
    "a scheduler alone": {"manager": {"enabled": False}, "koordlet": {"enabled": False}},
    "everything off": {
        "crds": {"managed": False},
        "priorityClasses": {"create": False},
        "sloControllerConfig": {"create": False},
        "manager": {"enabled": False},
        "scheduler": {"enabled": False},
        "koordlet": {"enabled": False},
        "installation": {"createNamespace": False},
    },
    "some CRDs, no budgets": {
        "crds": {"podgroups": False, "elasticquotas": False},
        "manager": {"podDisruptionBudget": {"enabled": False}},
        "scheduler": {"podDisruptionBudget": {"maxUnavailable": 2}},
    },
    "images of one's own": {
        "image": {
            "registry": "r.example:5000/team",
            "tag": "1.2",
            "pullPolicy": "Always",
            "pullSecrets": ["a", "b"],
        },
        "koordlet": {"image": {"repository": "agent", "tag": "1.3"}},
    },
    "flags, gates and ports": {
        "featureGates": "NodeMutatingWebhook=true,MultiQuotaTree=true",
        "manager": {
            "log": {"level": 4},
            "extraArgs": ["--sync-period=0", "--controllers=*,-quotaprofile"],
            "webhook": {"port": 9443},
            "metrics": {"port": 18080},
            "healthProbe": {"port": 18000},
            "replicas": 1,
            "hostNetwork": True,
        },
        "scheduler": {"featureGates": "ResizePod=true", "port": 11251, "securePort": 11259, "replicas": 0},
        "koordlet": {
            "featureGates": "",
            "port": 19316,
            "maxUnavailable": 3,
            "extraArgs": ["-dry-run"],
            "terway": True,
        },
    },
    "placement and resources": {
        "manager": {
            "nodeSelector": {"pool": "system"},
            "tolerations": [{"key": "pool", "operator": "Exists"}],
            "resources": {"requests": {"cpu": 1, "memory": None}, "limits": {"memory": None}},
        },
        "scheduler": {"tolerations": [{"key": "x", "value": "y", "effect": "NoSchedule"}]},
        "koordlet": {"nodeSelector": {"kubernetes.io/os": "linux"}, "resources": {"limits": {"cpu": "500m"}}},
        "deviceDaemon": {"enabled": True, "nodeSelector": {"npu": "true"}, "extraArgs": ["-oneshot=true"]},
        "yarnCopilot": {
            "enabled": True,
            "port": 19318,
            "nodeSelector": {"yarn": "true"},
            "extraArgs": ["--sync-memory-cgroup"],
        },
    },
    "webhooks": {
        "webhookConfiguration": {
            "failurePolicy": {"pods": "Fail", "nodes": "Fail", "elasticquotas": "Ignore"},
            "timeoutSeconds": 5,
        }
    },
    "configuration": {
        "sloControllerConfig": {
            "data": {
                "colocation-config": {
                    "enable": True,
                    "cpuReclaimThresholdPercent": 70,
                    "resourceDiffThreshold": 0.25,
                },
                "cpu-burst-config": {
                    "clusterStrategy": {"policy": "auto"},
                    "nodeStrategies": [{"name": "a<b & c", "nodeSelector": {"matchLabels": {"pool": "ä"}}}],
                },
            }
        },
        "scheduler": {
            "config": "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        },
    },
}


def render(settings: Mapping[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "values.yaml"
    path.write_text(json.dumps(settings))
    command = [HELM, "template", "release", str(CHART), "--kube-version", KUBERNETES, "-f", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def load_all(text: str) -> Iterator[Any]:
    """By libyaml, where it is: twenty times faster."""
    return yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def as_installed(body: dict[str, Any]) -> dict[str, Any]:
    """Without the annotation that Helm needs to keep what lasts."""
    annotations = body["metadata"].get("annotations", {})
    assert (annotations.pop("helm.sh/resource-policy", None) == "keep") == (body["kind"] in LASTING_KINDS)
    if not annotations:
        body["metadata"].pop("annotations", None)
    return body


def test_pods_of_the_chart_have_the_labels_that_install_gives_them() -> None:
    """Also where no Helm is there to render it: labels of pods depend on no value."""
    everything = values.read([("test", VALUE_SETS["everything on"])])
    for body in objects.objects(everything):
        if body["kind"] in ("DaemonSet", "Deployment"):
            labels = body["spec"]["template"]["metadata"]["labels"]
            name = body["metadata"]["name"].removeprefix("koord-")
            template = yaml_of_pod_labels((CHART / "templates" / f"{name}.yaml").read_text())
            assert template == labels, name


def yaml_of_pod_labels(template: str) -> Any:
    """The labels that a template of a workload gives to its pods."""
    labels = re.search(r"^  template:\n    metadata:\n      labels:\n((?: {8}.*\n)+)", template, re.MULTILINE)
    assert labels is not None
    return yaml.safe_load(labels[1])


@needs_helm
@pytest.mark.parametrize("name", list(VALUE_SETS))
def test_the_chart_renders_what_install_applies(name: str, tmp_path: Path) -> None:
    done = render(VALUE_SETS[name], tmp_path)
    assert done.returncode == 0, done.stderr

    rendered = {objects.key(body): as_installed(body) for body in load_all(done.stdout) if body}
    installed = {
        objects.key(body): body for body in objects.objects(values.read([("test", VALUE_SETS[name])]))
    }

    assert rendered.keys() == installed.keys()
    for key, body in installed.items():
        assert rendered[key] == body, key


@needs_helm
@pytest.mark.parametrize(
    "settings",
    [
        {"manager": {"replicas": "two"}},
        {"manager": {"replica": 2}},
        {"webhookConfiguration": {"timeoutSeconds": 31}},
        {"installation": {"namespace": "Upper"}},
        {"webhookConfiguration": {"failurePolicy": {"pods": "Maybe"}}},
    ],
)
def test_helm_refuses_what_install_refuses(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(values.ValuesError):
        values.read([("test", settings)])

    assert "values don't meet the specifications" in render(settings, tmp_path).stderr


@needs_helm
def test_helm_finds_nothing_wrong() -> None:
    done = subprocess.run([HELM, "lint", "--strict", str(CHART)], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout and "ERROR" not in done.stdout


# --- Without Helm ---


def test_the_values_are_the_defaults_and_all_that_templates_ask_for_is_there() -> None:
    there = yaml.safe_load((CHART / "values.yaml").read_text())
    assert there == msgspec.to_builtins(Values())

    for path in (CHART / "templates").iterdir():
        for name in re.findall(r"\.Values((?:\.\w+)+)", path.read_text()):
            found: Any = there
            for key in name.strip(".").split("."):
                assert key in found, f"{path.name}: {name}"
                found = found[key]


def test_every_value_is_used_by_a_template() -> None:
    text = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    # These are looked up by names that are data: of CRDs, of webhooks, of lists of amounts.
    free = {"crds", "failurePolicy", "resources"}
    used = set(re.findall(r"\.(\w+)", text))

    for path in leaves(Values()):
        assert free & set(path) or set(path) <= used, path


def leaves(section: Section, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for field in msgspec.structs.fields(section):
        value = getattr(section, field.name)
        path = (*above, field.encode_name)
        if isinstance(value, Section):
            yield from leaves(value, path)
        else:
            yield path


def test_brackets_of_templates_are_closed() -> None:
    for path in (CHART / "templates").iterdir():
        text = path.read_text()
        actions = re.findall(r"\{\{-?\s*(?:/\*.*?\*/|(\w+)[^}]*)?\s*-?\}\}", text, flags=re.S)
        opened = sum(word in ("if", "range", "with", "define") for word in actions)
        assert text.count("{{") == text.count("}}"), path.name
        assert opened == actions.count("end"), path.name


def test_files_that_templates_read_are_there() -> None:
    for path in (CHART / "templates").iterdir():
        for name in re.findall(r'Files\.Get "([^"]+)"', path.read_text()):
            assert (CHART / name).is_file(), f"{path.name}: {name}"
        for pattern in re.findall(r'Files\.Glob "([^"]+)"', path.read_text()):
            assert list(CHART.glob(pattern)), f"{path.name}: {pattern}"
    assert chart.files()["Chart.yaml"] == (CHART / "Chart.yaml").read_text()


def test_the_schema_describes_every_value() -> None:
    schema = chart.schema()
    definitions = schema["$defs"]

    def check(name: str) -> None:
        definition = definitions[name]
        assert definition["additionalProperties"] is False
        for child in definition["properties"].values():
            if "$ref" in child:
                check(child["$ref"].rpartition("/")[2])

    check("Values")
    assert "global" in definitions["Values"]["properties"], "Helm adds it to charts within charts"
