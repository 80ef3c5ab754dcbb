"""The table of webhooks, and the configurations made of it."""

import base64

import pytest

from koordinator.api import kinds
from koordinator.clock import SystemClock
from koordinator.local import registry
from koordinator.manager.webhooks import configuration, table
from koordinator.manager.webhooks.configuration import WebhookService


def test_the_webhooks_are_those_of_the_reference() -> None:
    mutating, validating = configuration.configurations(WebhookService())

    assert mutating["metadata"]["name"] == "koordinator-mutating-webhook-configuration"
    assert [entry["name"] for entry in mutating["webhooks"]] == [
        "mpod-create.koordinator.sh",
        "mpod-update.koordinator.sh",
        "mreservation-create.koordinator.sh",
        "mnode-status.koordinator.sh",
        "melasticquota.koordinator.sh",
    ]
    assert validating["metadata"]["name"] == "koordinator-validating-webhook-configuration"
    assert {entry["name"]: entry["failurePolicy"] for entry in validating["webhooks"]} == {
        "vpod.koordinator.sh": "Fail",
        "vpodresize.koordinator.sh": "Fail",
        "vpodbinding.koordinator.sh": "Ignore",
        "velasticquota.koordinator.sh": "Fail",
        "vnode.koordinator.sh": "Ignore",
        "vconfigmap.koordinator.sh": "Fail",
        # Ours, until something acts on these: they only warn.
        "wrecommendation.koordinator.sh": "Ignore",
        "vtidalpool.koordinator.sh": "Ignore",
    }


def test_a_service_is_named_with_the_path() -> None:
    mutating, _ = configuration.configurations(WebhookService(name="hooks", namespace="kw"), ca_cert=b"pem")

    assert mutating["webhooks"][0]["clientConfig"] == {
        "service": {"namespace": "kw", "name": "hooks", "path": "/mutate-pod", "port": 443},
        "caBundle": base64.b64encode(b"pem").decode(),
    }


def test_only_served_paths_and_other_policies() -> None:
    mutating, validating = configuration.configurations(
        "https://10.0.0.1:9876",
        paths=(table.MUTATE_POD, table.VALIDATE_QUOTA),
        failure_policies={"mpod-create.koordinator.sh": "Ignore"},
    )

    assert [(entry["name"], entry["failurePolicy"]) for entry in mutating["webhooks"]] == [
        ("mpod-create.koordinator.sh", "Ignore"),
        ("mpod-update.koordinator.sh", "Fail"),
    ]
    assert [entry["clientConfig"]["url"] for entry in validating["webhooks"]] == [
        f"https://10.0.0.1:9876{table.VALIDATE_QUOTA}"
    ]


@pytest.mark.parametrize("index", [0, 1], ids=["mutating", "validating"])
async def test_an_api_server_accepts_the_configurations_and_adds_nothing(index: int) -> None:
    backend = registry.in_memory(SystemClock())
    wanted = configuration.configurations(WebhookService())[index]
    resource = kinds.by_kind("admissionregistration.k8s.io", wanted["kind"])
    assert resource is not None

    made = await backend.create(resource, "", wanted)

    assert made.obj["webhooks"] == wanted["webhooks"]
