"""Files of volumes that are made of what the API knows, and the directory in which they change at once."""

import base64
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from koordinator.api.core import ConfigMap, Secret
from koordinator.local.processes import volumes
from koordinator.local.processes.environment import EnvironmentSources
from koordinator.local.processes.pod_spec import TokenFile
from koordinator.local.processes.volumes import File, FileOwner, MountError, Payload, VolumeSources
from tests.local.processes.pods import container, pod

AROUND = EnvironmentSources(
    node_name="vm", host_ip="127.0.0.1", pod_ip="127.64.0.2", allocatable={"cpu": "2", "memory": "4Gi"}
)
BINARY = bytes(range(256))
KNOWN = VolumeSources(
    config_maps={
        "conf": ConfigMap(data={"a": "1", "b": "2"}, binary_data={"c": base64.b64encode(BINARY).decode()}),
        "lost": None,
    },
    secrets={"word": Secret(data={"word": "c2VzYW1l"}), "lost": None},
    tokens={TokenFile(path="token", expiration_seconds=3607): "signed"},
)


def files(source: dict[str, Any], **spec: Any) -> Payload:
    found = pod(container(limits={"cpu": "1500m"}), volumes=[{"name": "v", **source}], **spec)
    return volumes.of_volume(found.spec.volumes[0], found, AROUND, KNOWN)


def config_map(**source: Any) -> Payload:
    return files({"configMap": {"name": "conf", **source}})


def test_all_keys_of_a_config_map_are_files_of_its_mode() -> None:
    assert config_map(defaultMode=0o400) == {
        "a": File(b"1", 0o400),
        "b": File(b"2", 0o400),
        "c": File(BINARY, 0o400),
    }


def test_items_choose_keys_paths_and_modes() -> None:
    items = [{"key": "a", "path": "x/y", "mode": 0o600}, {"key": "b", "path": "b"}]
    assert config_map(items=items) == {"x/y": File(b"1", 0o600), "b": File(b"2", 0o644)}


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ({"configMap": {"name": "lost"}}, 'configmap "lost" not found'),
        ({"secret": {"secretName": "lost"}}, 'secret "lost" not found'),
        ({"configMap": {"name": "conf", "items": [{"key": "z", "path": "z"}]}}, "non-existent config key: z"),
        ({"secret": {"secretName": "word", "items": [{"key": "z", "path": "z"}]}}, "non-existent secret key"),
        ({"configMap": {"name": "conf", "items": [{"key": "a", "path": "../a"}]}}, "invalid path ../a"),
        ({"configMap": {"name": "conf", "items": [{"key": "a", "path": "x/../../a"}]}}, "invalid path"),
        ({"configMap": {"name": "conf", "items": [{"key": "a", "path": "/etc/a"}]}}, "invalid path /etc/a"),
        ({"projected": {"sources": [{"clusterTrustBundle": {"path": "ca"}}]}}, "serviceAccountToken only"),
        (
            {"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "spec.x"}}]}},
            "unsupported fieldPath: spec.x",
        ),
    ],
)
def test_what_cannot_be_given_names_volume_and_reason(source: dict[str, Any], why: str) -> None:
    with pytest.raises(MountError, match=why) as refused:
        files(source)
    assert 'volume "v"' in str(refused.value)


@pytest.mark.parametrize(
    "source",
    [
        {"configMap": {"name": "lost", "optional": True}},
        {"secret": {"secretName": "lost", "optional": True}},
        {"configMap": {"name": "conf", "optional": True, "items": [{"key": "z", "path": "z"}]}},
    ],
)
def test_what_is_optional_may_be_absent(source: dict[str, Any]) -> None:
    assert files(source) == {}


def test_the_volume_that_every_pod_gets_has_token_authority_and_namespace() -> None:
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "conf", "items": [{"key": "a", "path": "ca.crt"}]}},
        {
            "downwardAPI": {
                "items": [
                    {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
                ]
            }
        },
    ]
    volume = {"projected": {"defaultMode": 0o644, "sources": sources}}

    assert files(volume) == {
        "token": File(b"signed", 0o644),
        "ca.crt": File(b"1", 0o644),
        "namespace": File(b"default", 0o644),
    }
    for narrow in ({"runAsUser": 1000}, {"fsGroup": 2000}):
        assert files(volume, securityContext=narrow)["token"].mode == 0o600


def test_fields_and_amounts_are_reported_and_maps_are_quoted_line_by_line() -> None:
    items = [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}, "mode": 0o440},
        {
            "path": "cpu",
            "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu", "divisor": "1m"},
        },
    ]
    assert files({"downwardAPI": {"items": items}}) == {
        "labels": File(b'app="web"', 0o644),
        "name": File(b"web", 0o440),
        "cpu": File(b"1500", 0o644),
    }
    quoted = volumes.lines({"b": 'say "ü"\n\t\\\x01\x7f\u200b', "a": ""})
    assert quoted == 'a=""\nb="say \\"ü\\"\\n\\t\\\\\\x01\\x7f\\u200b"'


def test_later_sources_win() -> None:
    sources = [
        {"configMap": {"name": "conf", "items": [{"key": "a", "path": "x"}]}},
        {"secret": {"name": "word", "items": [{"key": "word", "path": "x"}]}},
    ]
    assert files({"projected": {"sources": sources}}) == {"x": File(b"sesame", 0o644)}


def test_the_owner_is_the_one_user_of_all_containers_and_the_group_of_the_pod() -> None:
    one = container(securityContext={"runAsUser": 7})
    other = container("other")
    assert volumes.owner(pod(one)) == FileOwner(7, None)
    assert volumes.owner(pod(one, other)) == FileOwner(None, None)
    assert volumes.owner(pod(one, other, securityContext={"runAsUser": 7, "fsGroup": 9})) == FileOwner(7, 9)


def read(folder: Path) -> dict[str, tuple[bytes, int]]:
    """What a container sees."""
    visible = [path for path in folder.rglob("*") if not path.relative_to(folder).parts[0].startswith("..")]
    linked = [each for path in visible if path.is_symlink() and path.is_dir() for each in path.rglob("*")]
    return {
        str(path.relative_to(folder)): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
        for path in (*visible, *linked)
        if path.is_file()
    }


def test_files_change_together_and_stale_ones_go(tmp_path: Path) -> None:
    first = {"a": File(b"1", 0o644), "x/y": File(b"2", 0o400), "gone/z": File(b"3", 0o644)}
    assert volumes.replace_files(tmp_path, first, FileOwner())
    assert read(tmp_path) == {"a": (b"1", 0o644), "x/y": (b"2", 0o400), "gone/z": (b"3", 0o644)}
    before = os.readlink(tmp_path / "..data")

    assert not volumes.replace_files(tmp_path, first, FileOwner()), "nothing changed"
    assert os.readlink(tmp_path / "..data") == before
    held = os.open(tmp_path / "..data", os.O_RDONLY)  # a reader in the midst of it

    second = {"a": File(b"new", 0o600), "x/y": File(b"2", 0o400)}
    assert volumes.replace_files(tmp_path, second, FileOwner())

    assert read(tmp_path) == {"a": (b"new", 0o600), "x/y": (b"2", 0o400)}
    assert {path.name for path in tmp_path.iterdir()} == {
        "a",
        "x",
        "..data",
        os.readlink(tmp_path / "..data"),
    }
    assert os.stat(held).st_nlink == 0, "the old directory went as a whole"
    os.close(held)


def test_a_change_of_a_mode_alone_is_a_change(tmp_path: Path) -> None:
    volumes.replace_files(tmp_path, {"a": File(b"1", 0o644)}, FileOwner())

    assert volumes.replace_files(tmp_path, {"a": File(b"1", 0o600)}, FileOwner())
    assert read(tmp_path) == {"a": (b"1", 0o600)}


def test_the_group_of_a_volume_may_read_it(tmp_path: Path) -> None:
    group = os.getgid()
    volumes.replace_files(tmp_path, {"x/token": File(b"t", 0o600)}, FileOwner(None, group))

    assert read(tmp_path) == {"x/token": (b"t", 0o640)}
    folder = (tmp_path / "x").stat()
    assert (folder.st_gid, stat.S_IMODE(folder.st_mode)) == (group, 0o2755)
