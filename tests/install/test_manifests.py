"""The files in deploy/ are what the code says, and what they say fits together."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordinator.install import manifests, objects, values
from koordinator.install.values import EVERYTHING, Values

DEPLOY = Path(__file__).parents[2] / "deploy"


def of(settings: dict[str, Any]) -> list[dict[str, Any]]:
    return objects.objects(values.read([("test", settings)]))


def kinds_of(bodies: list[dict[str, Any]]) -> set[str]:
    return {body["kind"] for body in bodies}


def test_the_committed_files_are_what_the_code_says() -> None:
    wrong = [
        name
        for name, text in manifests.repository().items()
        if not (DEPLOY / name).exists() or (DEPLOY / name).read_text(encoding="utf-8") != text
    ]

    assert wrong == [], "run: make manifests"


def test_no_generated_file_is_left_over() -> None:
    made = manifests.repository()
    folders = {name.partition("/")[0] for name in made if "/" in name} - {"chart"}
    there = {
        str(path.relative_to(DEPLOY))
        for folder in folders
        for path in (DEPLOY / folder).rglob("*")
        if path.is_file()
    }

    assert there - made.keys() == set()


def test_the_folder_holds_every_object_once() -> None:
    files = manifests.folder(EVERYTHING)
    bodies = [
        body
        for name, text in files.items()
        if not name.endswith("kustomization.yaml")
        for body in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    ]

    assert sorted(map(objects.key, bodies)) == sorted(map(objects.key, objects.objects(EVERYTHING)))
    for name, text in files.items():
        if name.endswith("kustomization.yaml"):
            base = Path(name).parent
            for resource in yaml.safe_load(text)["resources"]:
                path = str(base / resource)
                assert path in files or f"{path}/kustomization.yaml" in files, (name, resource)


def test_no_object_comes_twice_and_namespaces_come_before_what_is_in_them() -> None:
    bodies = objects.objects(EVERYTHING)
    keys = [objects.key(body) for body in bodies]

    assert len(set(keys)) == len(keys)
    first = keys.index("Namespace koordinator-system")
    assert all(index > first for index, body in enumerate(bodies) if "namespace" in body["metadata"])


def test_everything_follows_the_namespace() -> None:
    bodies = of(
        {"installation": {"namespace": "elsewhere"}, "metrics": {"serviceMonitor": {"enabled": True}}}
    )

    assert "koordinator-system" not in json.dumps(bodies)
    assert "koordinator-system" in json.dumps(objects.objects(Values()))


@pytest.mark.parametrize(
    ("settings", "gone"),
    [
        ({"crds": {"managed": False}}, {"CustomResourceDefinition"}),
        ({"priorityClasses": {"create": False}}, {"PriorityClass"}),
        ({"installation": {"createNamespace": False}}, {"Namespace"}),
        ({"koordlet": {"enabled": False}}, {"DaemonSet"}),
        ({"manager": {"enabled": False}}, {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}),
        (
            {
                "manager": {"podDisruptionBudget": {"enabled": False}},
                "scheduler": {"podDisruptionBudget": {"enabled": False}},
            },
            {"PodDisruptionBudget"},
        ),
    ],
)
def test_what_is_switched_off_is_left_out(settings: dict[str, Any], gone: set[str]) -> None:
    assert gone <= kinds_of(objects.objects(Values()))
    assert kinds_of(of(settings)) & gone == set()


def test_one_crd_can_be_left_out() -> None:
    names = [objects.key(body) for body in of({"crds": {"podgroups": False}})]

    assert "CustomResourceDefinition podgroups.scheduling.sigs.k8s.io" not in names
    assert "CustomResourceDefinition elasticquotas.scheduling.sigs.k8s.io" in names


def workloads(bodies: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {body["metadata"]["name"]: body for body in bodies if body["kind"] in ("Deployment", "DaemonSet")}


def test_an_image_is_registry_repository_and_tag() -> None:
    found = workloads(
        of(
            {
                "image": {"registry": "r.example/t", "tag": "9", "pullSecrets": ["s"]},
                "koordlet": {"image": {"tag": "8"}},
            }
        )
    )

    def image(name: str) -> str:
        return str(found[name]["spec"]["template"]["spec"]["containers"][0]["image"])

    assert image("koord-manager") == image("koord-scheduler") == "r.example/t/koordinator:9"
    assert image("koordlet") == "r.example/t/koordlet:8"
    for body in found.values():
        assert body["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "s"}]


def test_deployments_run_without_rights_and_keep_going_through_upgrades() -> None:
    for name, body in workloads(objects.objects(Values())).items():
        if body["kind"] != "Deployment":
            continue
        pod = body["spec"]["template"]["spec"]
        [container] = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert body["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": "100%", "maxUnavailable": 0}
        assert {"readinessProbe", "livenessProbe"} <= container.keys()


def test_services_and_budgets_select_pods_that_exist_and_ports_that_are_open() -> None:
    bodies = objects.objects(EVERYTHING)
    apps = {
        body["spec"]["template"]["metadata"]["labels"]["koord-app"]: body["spec"]["template"]["spec"][
            "containers"
        ][0]
        for body in workloads(bodies).values()
    }
    services = [body for body in bodies if body["kind"] == "Service"]
    assert len(services) == 7
    for body in services:
        open_ports = {
            port for each in apps[body["spec"]["selector"]["koord-app"]]["ports"] for port in each.values()
        }
        assert all(port["targetPort"] in open_ports for port in body["spec"]["ports"]), body["metadata"][
            "name"
        ]
    for body in bodies:
        if body["kind"] == "PodDisruptionBudget":
            assert body["spec"]["selector"]["matchLabels"]["koord-app"] in apps
        if body["kind"] == "ServiceMonitor":
            wanted = body["spec"]["selector"]["matchLabels"]
            assert any(
                wanted.items() <= service["metadata"]["labels"].items()
                and body["spec"]["endpoints"][0]["port"]
                in {port["name"] for port in service["spec"]["ports"]}
                for service in services
            )


def test_the_webhook_template_holds_policies_timeout_and_the_service() -> None:
    bodies = of(
        {
            "installation": {"namespace": "ours"},
            "webhookConfiguration": {
                "failurePolicy": {"pods": "Fail", "elasticquotas": "Ignore"},
                "timeoutSeconds": 7,
            },
        }
    )
    entries = {
        entry["name"]: entry
        for body in bodies
        if body["kind"].endswith("WebhookConfiguration")
        for entry in json.loads(body["metadata"]["annotations"]["template"])
    }

    assert len(entries) == 13
    policies = {name: entry["failurePolicy"] for name, entry in entries.items()}
    assert policies["mpod-create.koordinator.sh"] == policies["vpod.koordinator.sh"] == "Fail"
    assert policies["velasticquota.koordinator.sh"] == policies["vnode.koordinator.sh"] == "Ignore"
    for entry in entries.values():
        service = entry["clientConfig"]["service"]
        assert (service["namespace"], service["port"]) == ("ours", 443)
        assert entry["timeoutSeconds"] == 7
        assert "caBundle" not in entry["clientConfig"]
