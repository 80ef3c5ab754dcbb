"""Build an image without a registry of images: Debian by debootstrap, the package by pip, an archive by ourselves.

    python -m tools.images build/images/koordlet.tar          # needs root, debootstrap, and the network the first time
    python -m tools.images build/images/koordlet.tar arm64    # for another machine: Debian's programs run emulated

For another architecture the kernel must know an emulator (Debian: qemu-user-static, binfmt-support).
The archive is what `docker load` and `ctr images import` read. Debian and the packages are kept in the user's cache.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SUITE, PYTHON = "bookworm", "3.11"
"""A Debian, and the Python that it has."""
DEBIAN_PACKAGES = "python3,ca-certificates,lvm2,util-linux,iproute2"
"""lvm2 and util-linux tell which disk a volume is on, tc (iproute2) shapes traffic."""
EXTRA = "node"
PACKAGES = "koordinator"
"""Folder of the image with the package and what it needs."""
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Debian's name of an architecture → that of Python's packages."""
_PLATFORMS = ("manylinux_2_28", "manylinux2014")
_LEFT_OUT = ("./proc/", "./sys/", "./dev/", "./var/cache/apt/", "./var/lib/apt/lists/", "./usr/share/doc/")


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "koordinator" / "images"


def main(words: list[str]) -> int:
    architecture = words[1] if len(words) > 1 else "amd64"
    if len(words) not in (1, 2) or architecture not in _MACHINES:
        print(__doc__, file=sys.stderr)
        return 2
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        print("needs root and debootstrap (Debian: debootstrap)", file=sys.stderr)
        return 1
    cache, archive = cache_folder() / architecture, Path(words[0])
    archive.parent.mkdir(parents=True, exist_ok=True)
    debian, package = cache / SUITE, cache / "package"
    _provide_debian(debian, architecture)
    _provide_package(package, _MACHINES[architecture])
    layers = [_layer(debian, cache / "debian-layer.tar"), _layer(package, cache / "package-layer.tar")]
    name = f"koordlet:{_project()['version']}"
    _write_archive(archive, name, layers, architecture)
    print(f"{name}: {archive} ({archive.stat().st_size >> 20} MiB)")
    return 0


def _project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def _provide_debian(folder: Path, architecture: str) -> None:
    """Once; a try that failed leaves nothing behind."""
    if folder.exists():
        return
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    options = ["--variant=minbase", f"--arch={architecture}", f"--include={DEBIAN_PACKAGES}"]
    words = ["debootstrap", *options, SUITE, str(unfinished)]
    subprocess.run(words, check=True, stdout=sys.stderr)
    unfinished.rename(folder)


def _provide_package(folder: Path, machine: str) -> None:
    """The package of this tree and what it needs, with its commands; anew each time, since the tree changes."""
    shutil.rmtree(folder, ignore_errors=True)
    wheels = folder.with_name("wheels")
    shutil.rmtree(wheels, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", f"--wheel-dir={wheels}", str(ROOT)], check=True)
    (wheel,) = wheels.glob("koordinator-*.whl")
    platforms = [f"--platform={each}_{machine}" for each in _PLATFORMS]
    binary = ["--only-binary=:all:", f"--python-version={PYTHON}", "--implementation=cp", *platforms]
    target = folder / PACKAGES
    subprocess.run([*pip, "install", *binary, f"--target={target}", f"{wheel}[{EXTRA}]"], check=True)
    shutil.rmtree(target / "bin", ignore_errors=True)  # commands that name the Python of this machine
    commands = folder / "usr/local/bin"
    commands.mkdir(parents=True)
    for name, function in _project()["scripts"].items():
        module, _, attribute = function.partition(":")
        text = (
            f"#!/usr/bin/python3\nimport sys\n\nfrom {module} import {attribute}\n\nsys.exit({attribute}())\n"
        )
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)


def _layer(folder: Path, tar: Path) -> Path:
    """All files of a folder, owned by root, in the order of their names."""

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if member.name.startswith(_LEFT_OUT) or "/__pycache__" in member.name:
            return None
        member.mtime = 0
        return member

    with tarfile.open(tar, "w") as made:
        made.add(folder, ".", filter=kept)
    return tar


def _write_archive(path: Path, name: str, layers: list[Path], architecture: str) -> None:
    digests = [_digest(layer) for layer in layers]
    config = json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {
                "Entrypoint": ["koordlet"],
                "Env": [
                    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                    f"PYTHONPATH=/{PACKAGES}",
                    "PYTHONDONTWRITEBYTECODE=1",
                ],
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        }
    ).encode()
    names = [f"{digest}.tar" for digest in digests]
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": names}]).encode()
    folder = path.parent / f".{path.name}.parts"
    folder.mkdir(exist_ok=True)
    try:
        (folder / config_name).write_bytes(config)
        (folder / "manifest.json").write_bytes(manifest)
        with tarfile.open(path, "w") as archive:
            for layer, layer_name in zip(layers, names, strict=True):
                archive.add(layer, layer_name)
            for each in (config_name, "manifest.json"):
                archive.add(folder / each, each)
    finally:
        shutil.rmtree(folder)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
