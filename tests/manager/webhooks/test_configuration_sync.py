"""What the webhook configurations should say, given what they say."""

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.manager.webhooks import configuration, table
from koordinator.manager.webhooks.configuration import DesiredWebhooks, WebhookService

Json = dict[str, Any]
SERVICE = WebhookService()
CA = b"-----BEGIN CERTIFICATE-----\nours\n-----END CERTIFICATE-----\n"
PATHS = (table.MUTATE_POD, table.MUTATE_QUOTA)
INSTALLED = configuration.configurations(SERVICE)[0]["webhooks"]


def wanted(
    annotations: dict[str, str],
    present: list[Json],
    where: WebhookService | str = SERVICE,
    paths: Any = PATHS,
) -> DesiredWebhooks:
    return configuration.wanted(annotations, present, where=where, ca_bundle=CA, paths=paths)


def names(found: DesiredWebhooks) -> list[str]:
    return [entry["name"] for entry in found.webhooks]


def test_entries_without_an_active_handler_are_dropped_and_the_list_is_kept() -> None:
    found = wanted({}, INSTALLED)

    assert names(found) == [
        "mpod-create.koordinator.sh",
        "mpod-update.koordinator.sh",
        "melasticquota.koordinator.sh",
    ]
    assert msgspec.json.decode(found.template) == INSTALLED
    assert {base64.b64decode(entry["clientConfig"]["caBundle"]) for entry in found.webhooks} == {CA}


def test_a_gate_that_is_on_again_brings_its_entry_back() -> None:
    without = wanted({}, INSTALLED)

    found = wanted({"template": without.template}, without.webhooks, paths=(*PATHS, table.MUTATE_RESERVATION))

    assert "mreservation-create.koordinator.sh" in names(found)
    assert configuration.differs(found, {"template": without.template}, without.webhooks)


def test_the_service_is_ours_and_its_port_the_installations() -> None:
    service = {"namespace": "elsewhere", "name": "other", "path": table.MUTATE_POD, "port": 8443}
    present = [{**INSTALLED[0], "clientConfig": {"service": service, "caBundle": "AAAA"}}]

    (entry,) = wanted({}, present, WebhookService(namespace="kw", name="hooks")).webhooks

    assert entry["clientConfig"]["service"] == {
        "namespace": "kw",
        "name": "hooks",
        "path": table.MUTATE_POD,
        "port": 8443,
    }
    assert "AAAA" not in wanted({}, present).template


def test_with_a_host_entries_become_urls_and_back() -> None:
    by_url = wanted({}, INSTALLED, "https://10.0.0.1:9876")
    back = wanted({}, by_url.webhooks)

    assert by_url.webhooks[0]["clientConfig"]["url"] == f"https://10.0.0.1:9876{table.MUTATE_POD}"
    assert "service" not in by_url.webhooks[0]["clientConfig"]
    assert [entry["clientConfig"] for entry in back.webhooks] == [
        entry["clientConfig"] for entry in wanted({}, INSTALLED).webhooks
    ]


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(lambda entries: entries.pop(0), id="an entry deleted"),
        pytest.param(lambda entries: entries[0].update(failurePolicy="Ignore"), id="a policy"),
        pytest.param(lambda entries: entries[0]["clientConfig"].update(caBundle="AAAA"), id="a CA"),
        pytest.param(lambda entries: entries[0]["rules"][0].update(operations=["*"]), id="a rule"),
        pytest.param(lambda entries: entries.reverse(), id="the order"),
        pytest.param(lambda entries: entries.append({**entries[0], "name": "a.b.c"}), id="an entry more"),
    ],
)
def test_a_list_edited_by_hand_is_put_right(edit: Any) -> None:
    right = wanted({}, INSTALLED)
    annotations = {"template": right.template}
    edited = msgspec.json.decode(msgspec.json.encode(right.webhooks))
    edit(edited)

    found = wanted(annotations, edited)

    assert configuration.differs(found, annotations, edited)
    assert found.webhooks == right.webhooks


def test_a_list_as_the_api_server_completes_it_is_left_alone() -> None:
    sparse: Json = {
        "name": "mpod-create.koordinator.sh",
        "clientConfig": {"service": {"namespace": "x", "name": "y", "path": table.MUTATE_POD}},
        "rules": [
            {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
        ],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    annotations = {"template": msgspec.json.encode([sparse]).decode()}
    found = wanted(annotations, [])
    completed = [
        {
            **found.webhooks[0],
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "namespaceSelector": {},
            "objectSelector": {},
            "timeoutSeconds": 10,
            "reinvocationPolicy": "Never",
            "rules": [{**sparse["rules"][0], "scope": "*"}],
        }
    ]

    assert configuration.differs(found, annotations, [])
    assert not configuration.differs(found, annotations, completed)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "null", "[{"])
def test_a_template_that_cannot_be_read_is_replaced_by_the_list_and_reported(text: str) -> None:
    found = wanted({"template": text}, INSTALLED)

    assert "annotation 'template' is no JSON list of webhooks" in found.problem
    assert found.template == wanted({}, INSTALLED).template
    assert configuration.differs(found, {"template": text}, found.webhooks)


@settings(max_examples=50)
@given(
    st.sets(st.sampled_from(sorted(table.GATES_BY_PATH))),
    st.sets(st.sampled_from(sorted(table.GATES_BY_PATH))),
)
def test_whatever_was_active_before_one_write_settles_it(before: set[str], after: set[str]) -> None:
    first = wanted({}, INSTALLED, paths=before)
    annotations = {"template": first.template}

    second = wanted(annotations, first.webhooks, paths=after)

    assert {configuration.path_of(entry) for entry in second.webhooks} == after & {
        configuration.path_of(entry) for entry in INSTALLED
    }
    assert not configuration.differs(
        wanted(annotations, second.webhooks, paths=after), annotations, second.webhooks
    )


def test_all_cas_of_a_list_are_found() -> None:
    def entry(bundle: str | None) -> Json:
        return {"clientConfig": {"url": "https://x"} | ({} if bundle is None else {"caBundle": bundle})}

    present = [entry(base64.b64encode(pem).decode()) for pem in (b"a\n", b"a\n", b"b\n")]

    assert configuration.bundle_of([*present, entry(None), entry("?"), {}]) == b"a\n\nb\n"
