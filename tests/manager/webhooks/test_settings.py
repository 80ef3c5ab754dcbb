"""Environment variables of the webhooks."""

from pathlib import Path

import pytest

from koordinator.manager.webhooks.configuration import (
    CertWriter,
    SettingsError,
    WebhookService,
    WebhookSettings,
)


def test_defaults_are_those_of_the_reference() -> None:
    settings = WebhookSettings.of({"WEBHOOK_PORT": ""})

    assert settings == WebhookSettings(
        mutating_name="koordinator-mutating-webhook-configuration",
        validating_name="koordinator-validating-webhook-configuration",
        host="",
        port=9876,
        service=WebhookService(name="koordinator-webhook-service", namespace="koordinator-system"),
        secret_name="koordinator-webhook-certs",
        cert_dir=Path("/tmp/koordinator-webhook-certs"),
        writer=CertWriter.SECRET,
    )
    assert settings.dns_name == "koordinator-webhook-service.koordinator-system.svc"


def test_a_host_keeps_certificates_in_files_and_is_the_name_they_are_for() -> None:
    settings = WebhookSettings.of({"WEBHOOK_HOST": "10.0.0.7", "POD_NAMESPACE": "kw"})

    assert (settings.writer, settings.dns_name) == (CertWriter.FS, "10.0.0.7")
    assert WebhookSettings.of({"WEBHOOK_HOST": "h", "WEBHOOK_CERT_WRITER": "secret"}).writer == "secret"


@pytest.mark.parametrize(
    ("host", "listens"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("localhost", "localhost"), ("10.0.0.7", None), ("", None)],
)
def test_a_loopback_host_is_the_only_address_listened_on(host: str, listens: str | None) -> None:
    assert WebhookSettings.of({"WEBHOOK_HOST": host}).listen_host == listens


@pytest.mark.parametrize(
    ("variable", "value"),
    [("WEBHOOK_PORT", "https"), ("WEBHOOK_PORT", "0"), ("WEBHOOK_CERT_WRITER", "vault")],
)
def test_what_cannot_be_used_names_its_variable(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^{variable}='{value}': expected "):
        WebhookSettings.of({variable: value})
