"""Certificates: what is wrong with them, new ones, and whom API servers trust meanwhile."""

import base64
import functools
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from koordinator.api.core import Secret
from koordinator.clock import FixedClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.manager.webhooks import certificates, sync
from koordinator.manager.webhooks.certificates import CertificateSet, Renewal
from koordinator.manager.webhooks.sync import FileStore, LoadedCertificates, SecretStore

NOW_S = 1_800_000_000.0
DAY_S = 86_400.0
HOST = "koordinator-webhook-service.koordinator-system.svc"
NAMESPACE = "default"


@functools.cache  # making an RSA key takes a tenth of a second
def made(now_s: float = NOW_S, number: int = 0) -> CertificateSet:
    return certificates.renewed(None, HOST, now_s)


def cas(bundle: bytes) -> list[bytes]:
    found = x509.load_pem_x509_certificates(bundle)
    return [each.public_bytes(serialization.Encoding.PEM) for each in found]


# What is wrong


def test_new_certificates_are_good_for_nine_and_a_half_years() -> None:
    assert certificates.why_renew(made(), HOST, NOW_S) is Renewal.NONE
    assert certificates.why_renew(made(), "localhost", NOW_S) is Renewal.NONE
    assert certificates.why_renew(made(), HOST, NOW_S + (3650 - 184) * DAY_S) is Renewal.NONE
    assert certificates.why_renew(made(), HOST, NOW_S + (3650 - 182) * DAY_S) is Renewal.ENDS_SOON


@pytest.mark.parametrize(
    ("certs", "host", "now_s", "why"),
    [
        pytest.param(None, HOST, NOW_S, Renewal.MISSING, id="there are none"),
        pytest.param(
            CertificateSet(b"", b"", b"", b""), HOST, NOW_S, Renewal.UNREADABLE, id="nothing that can be read"
        ),
        pytest.param(
            msgspec.structs.replace(made(), key=made(number=1).key),
            HOST,
            NOW_S,
            Renewal.NOT_PAIRED,
            id="another's key",
        ),
        pytest.param(
            msgspec.structs.replace(made(), ca_cert=made(number=1).ca_cert),
            HOST,
            NOW_S,
            Renewal.NO_CHAIN,
            id="another's CA",
        ),
        pytest.param(
            msgspec.structs.replace(made(), ca_cert=made().cert), HOST, NOW_S, Renewal.NO_CHAIN, id="no CA"
        ),
        pytest.param(made(), "other.svc", NOW_S, Renewal.WRONG_NAME, id="for another name"),
        pytest.param(made(), HOST, NOW_S - 2 * DAY_S, Renewal.NOT_YET, id="from the future"),
    ],
)
def test_certificates_are_replaced(
    certs: CertificateSet | None, host: str, now_s: float, why: Renewal
) -> None:
    assert certificates.why_renew(certs, host, now_s) is why


# New ones


def test_a_ca_that_lives_for_another_year_signs_the_next_certificate() -> None:
    later_s = NOW_S + 3000 * DAY_S

    renewed = certificates.renewed(made(), "other.svc", later_s)

    assert renewed.ca_cert == made().ca_cert
    assert renewed.cert != made().cert
    assert certificates.why_renew(renewed, "other.svc", later_s) is Renewal.NONE


@pytest.mark.parametrize(
    ("certs", "now_s"),
    [
        pytest.param(made(), NOW_S + (3650 - 300) * DAY_S, id="it ends within a year"),
        pytest.param(
            msgspec.structs.replace(made(), ca_key=made(number=1).ca_key), NOW_S, id="its key is lost"
        ),
        pytest.param(msgspec.structs.replace(made(), ca_key=b"?"), NOW_S, id="its key cannot be read"),
        pytest.param(None, NOW_S, id="there is none"),
    ],
)
def test_a_ca_that_is_of_no_use_is_replaced(certs: CertificateSet | None, now_s: float) -> None:
    renewed = certificates.renewed(certs, HOST, now_s)

    assert certs is None or renewed.ca_cert != certs.ca_cert
    assert certificates.why_renew(renewed, HOST, now_s) is Renewal.NONE


def test_an_address_is_a_name_too() -> None:
    certs = certificates.renewed(None, "10.1.2.3", NOW_S)

    assert certificates.why_renew(certs, "10.1.2.3", NOW_S) is Renewal.NONE
    assert certificates.why_renew(certs, "10.1.2.4", NOW_S) is Renewal.WRONG_NAME


# Whom to trust


def test_the_ca_before_stays_trusted_for_an_hour() -> None:
    old, new = made(NOW_S - 100 * DAY_S), made()
    both = certificates.trusted(new, old.ca_cert, NOW_S)

    assert cas(both) == [new.ca_cert, old.ca_cert]
    assert certificates.trusted(new, both, NOW_S + 3_000) == both
    assert certificates.trusted(new, both, NOW_S + 3_700) == new.ca_cert


def test_foreign_ended_and_unreadable_cas_are_not_kept() -> None:
    server_cert, ended = made(number=1).cert, made(NOW_S - 4000 * DAY_S).ca_cert

    assert certificates.trusted(made(), server_cert + ended, NOW_S) == made().ca_cert
    assert certificates.trusted(made(), b"no certificate", NOW_S) == made().ca_cert
    assert certificates.trusted(made(), b"", NOW_S) == made().ca_cert


# Where they are kept


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster(registry.in_memory(FixedClock(NOW_S)))


async def test_the_secret_is_made_once_and_then_used(cluster: MemoryCluster) -> None:
    store = SecretStore(cluster, NAMESPACE, "certs")

    first = await sync.ensure(store, HOST, cluster.clock)
    again = await sync.ensure(SecretStore(cluster, NAMESPACE, "certs"), HOST, cluster.clock)

    assert again == first
    secret = await cluster.get(Secret, "certs", NAMESPACE)
    assert set(secret.data) == {"ca-key.pem", "ca-cert.pem", "key.pem", "tls.key", "cert.pem", "tls.crt"}
    assert base64.b64decode(secret.data["tls.crt"]) == base64.b64decode(secret.data["cert.pem"]) == first.cert


class Racing(SecretStore):
    """A replica that another one overtakes between reading and writing, `times` times."""

    def __init__(self, cluster: MemoryCluster, times: int) -> None:
        super().__init__(cluster, NAMESPACE, "certs")
        self.others: list[CertificateSet] = []
        self._times = times

    async def save(self, certs: CertificateSet, instead_of: LoadedCertificates) -> bool:
        if len(self.others) < self._times:
            other = made(number=2 + len(self.others))
            assert await super().save(other, await self.load())
            self.others.append(other)
        return await super().save(certs, instead_of)


@pytest.mark.parametrize("is_there", [False, True], ids=["none yet", "unusable ones"])
async def test_of_two_replicas_that_renew_at_once_the_slower_takes_what_the_faster_made(
    cluster: MemoryCluster, is_there: bool
) -> None:
    if is_there:
        await cluster.create(Secret, {"metadata": {"name": "certs"}, "data": {"cert.pem": "AAAA"}}, NAMESPACE)
    slower = Racing(cluster, 1)

    certs = await sync.ensure(slower, HOST, cluster.clock)

    assert [certs] == slower.others
    assert (await slower.load()).certs == certs


@pytest.mark.parametrize("data", [{}, {"cert.pem": "AAAA", "key.pem": "AAAA"}])
async def test_a_secret_that_cannot_be_used_is_mended_and_keeps_what_is_not_ours(
    cluster: MemoryCluster, data: dict[str, str]
) -> None:
    body = {"metadata": {"name": "certs", "labels": {"a": "b"}}, "data": {**data, "other": "AAAA"}}
    await cluster.create(Secret, body, NAMESPACE)

    certs = await sync.ensure(SecretStore(cluster, NAMESPACE, "certs"), HOST, cluster.clock)

    secret = await cluster.get(Secret, "certs", NAMESPACE)
    assert (secret.data["other"], secret.metadata.labels) == ("AAAA", {"a": "b"})
    assert base64.b64decode(secret.data["tls.key"]) == certs.key


async def test_files_are_replaced_together_and_readable_by_nobody_else(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    store = FileStore(folder)
    first = await sync.ensure(store, HOST, FixedClock(NOW_S))

    sync.write(folder, made())

    assert (await store.load()).certs == made() != first
    assert {path.name for path in folder.iterdir() if not path.name.startswith("..")} == set(
        made().secret_data()
    )
    data = (folder / "..data").resolve()
    assert [path for path in folder.glob("..v*") if path.is_dir()] == [data]
    assert {path.stat().st_mode & 0o077 for path in data.iterdir()} == {0}
    assert folder.stat().st_mode & 0o077 == 0


async def test_files_written_by_others_are_taken_and_a_directory_that_is_none_is_named(
    tmp_path: Path,
) -> None:
    for name, content in made().secret_data().items():
        (tmp_path / name).write_bytes(content)
    assert await sync.ensure(FileStore(tmp_path), HOST, FixedClock(NOW_S)) == made()

    (tmp_path / "file").touch()
    with pytest.raises(sync.CertificateDirError, match=r"file \(WEBHOOK_CERT_DIR\): .*"):
        await sync.ensure(FileStore(tmp_path / "file"), HOST, FixedClock(NOW_S))
