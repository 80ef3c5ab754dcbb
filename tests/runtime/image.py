"""Images made on the spot: an archive in the format that `docker save` and `ctr images import` share."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_OWNED_BY_ROOT_AT = 0
"""Modification time of everything: the same files give the same image."""


def write_archive(path: Path, name: str, files: Mapping[str, bytes], entrypoint: Sequence[str]) -> None:
    """An image with one layer; every file may be executed."""
    layer = _tar(files, mode=0o755)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": list(entrypoint)},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    path.write_bytes(_tar({"layer.tar": layer, config_name: config, "manifest.json": manifest}, mode=0o644))


def _tar(files: Mapping[str, bytes], mode: int) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(content), mode, _OWNED_BY_ROOT_AT
            archive.addfile(member, io.BytesIO(content))
    return raw.getvalue()
