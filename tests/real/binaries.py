"""The programs of a real control plane: found, or built once from their Go modules.

Looked for in this order: `$KUBEBUILDER_ASSETS` (the convention of envtest), its usual folder, our cache folder. What is
missing is built into the cache with the Go toolchain, where there is one. etcd may also be on the PATH (Debian:
etcd-server). Helm is the one that `$HELM` names, or on the PATH, or built as well.

    python -m tests.real.binaries            # find or build; prints where they are
    python -m tests.real.binaries kubelet    # a program by its name
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests import go_programs
from tests.go_programs import Missing, last_line, run_go, say

RELEASE = "1.35.4"
ETCD_RELEASE = "3.6.5"
HELM_RELEASE = "3.20.2"
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager")
"""What every test needs."""
_OWN_SOURCE = Path(__file__).parent / "plugins" / "main.go"
PLUGINS = f"kube-scheduler-plugins-{hashlib.sha256(_OWN_SOURCE.read_bytes()).hexdigest()[:8]}"
"""A program of ours that asks kube-scheduler's plugins; another one whenever its source changes."""
BESIDE = ("kube-scheduler", "helm", PLUGINS)
"""What some tests need, which are skipped without."""
_KUBERNETES, _ETCD, _HELM = "k8s.io/kubernetes", "go.etcd.io/etcd/server/v3", "helm.sh/helm/v3"
_USUAL_FOLDER = Path("/usr/local/kubebuilder/bin")
_STAGING = re.compile(r"^\s*(k8s\.io/\S+) => \./staging/", re.MULTILINE)
_PATCH_RELEASES_TRIED = 3


def cache_folder() -> Path:
    return go_programs.cache_folder("kubernetes") / f"v{RELEASE}"


def find(name: str) -> Path | None:
    """The program where it already is."""
    if name == "helm":
        named = os.environ.get("HELM")
        return _on_path(named) if named else _on_path(name) or _in_folders(name)
    return _in_folders(name) or (_on_path(name) if name == "etcd" else None)


def _in_folders(name: str) -> Path | None:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    folders = (*((Path(assets),) if assets else ()), _USUAL_FOLDER, cache_folder())
    return next((folder / name for folder in folders if os.access(folder / name, os.X_OK)), None)


def _on_path(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found) if found else None


def why_missing(names: Sequence[str] = CONTROL_PLANE) -> str:
    """Empty when all are there; else a line that names what is missing and what helps."""
    missing = [name for name in names if find(name) is None]
    if not missing:
        return ""
    if missing == [PLUGINS]:
        return "no program that asks kube-scheduler's plugins: install Go and run `make test-plugins`, which builds it"
    folder = "KUBEBUILDER_ASSETS to a folder that has them (envtest)"
    where = "HELM to the program" if missing == ["helm"] else folder
    return f"no {', '.join(missing)}: set {where}, or install Go and run `make test-real`, which builds what is missing"


def located(names: Sequence[str] = CONTROL_PLANE) -> dict[str, Path]:
    """All of them, where they are. Raises: Missing."""
    why = why_missing(names)
    if why:
        raise Missing(why)
    return {name: found for name in names if (found := find(name)) is not None}


def provide(names: Sequence[str] = CONTROL_PLANE) -> dict[str, Path]:
    """All of them, built where they are missing. Raises: Missing."""
    for name in names:
        if find(name) is None:
            _build(name, names)
    return located(names)


def _build(name: str, names: Sequence[str]) -> None:
    go = shutil.which("go")
    if go is None:
        raise Missing(why_missing(names))
    recipe, folder = _recipe(name), cache_folder()
    begun_s = time.monotonic()
    say(
        f"building {name} {recipe.release} into {folder} "
        "(the first time: minutes, and some GB of Go's own cache)"
    )
    try:
        if recipe.module == _KUBERNETES:
            module = _kubernetes_module(go, folder / "build")
            (module / "plugins").mkdir(exist_ok=True)
            shutil.copy(_OWN_SOURCE, module / "plugins")
        else:
            module = go_programs.module_of(recipe.module, recipe.release, folder / f"build-{name}")
        unfinished = folder / f".{name}.{os.getpid()}"
        flags = " ".join(("-s", "-w", *(f"-X {each}" for each in recipe.variables)))
        run_go(go, module, "build", "-trimpath", "-ldflags", flags, "-o", str(unfinished), recipe.package)
        unfinished.rename(folder / name)
    except subprocess.CalledProcessError as error:
        raise Missing(f"{name} could not be built: {last_line(error)}") from error
    except OSError as error:
        raise Missing(f"{name} could not be built: {error}") from error
    say(f"built {name} in {time.monotonic() - begun_s:.0f} s")


class _Recipe(NamedTuple):
    """`variables` are set in the program, which tells by them which version it is."""

    module: str
    release: str
    package: str
    variables: tuple[str, ...] = ()


def _recipe(name: str) -> _Recipe:
    major, minor, _ = RELEASE.split(".")
    if name == "etcd":
        return _Recipe(_ETCD, ETCD_RELEASE, _ETCD)
    if name == "helm":
        renders_for = f"{_HELM}/pkg/chartutil.k8sVersion"  # when it asks no cluster
        own = f"{_HELM}/internal/version.version=v{HELM_RELEASE}"
        variables = (own, f"{renders_for}Major={major}", f"{renders_for}Minor={minor}")
        return _Recipe(_HELM, HELM_RELEASE, f"{_HELM}/cmd/helm", variables)
    if name == PLUGINS:
        return _Recipe(_KUBERNETES, RELEASE, "./plugins")
    of = "k8s.io/component-base/version.git"
    variables = (f"{of}Version=v{RELEASE}", f"{of}Major={major}", f"{of}Minor={minor}")
    return _Recipe(_KUBERNETES, RELEASE, f"{_KUBERNETES}/cmd/{name}", variables)


def _kubernetes_module(go: str, folder: Path) -> Path:
    """A module of ours that requires Kubernetes; its staging modules are published beside it, one version each."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "go.mod").write_text("module koordinator.test/kubernetes\n\ngo 1.25.0\n")
    say(f"fetching k8s.io/kubernetes v{RELEASE} and its modules")
    told = json.loads(run_go(go, folder, "mod", "download", "-json", f"k8s.io/kubernetes@v{RELEASE}"))
    staging = _STAGING.findall(Path(told["GoMod"]).read_text())
    replaced = [f"\t{name} => {name} {version}" for name, version in _published(go, folder, staging).items()]
    lines = [
        *("module koordinator.test/kubernetes", "", "go 1.25.0", ""),
        *(f"require k8s.io/kubernetes v{RELEASE}", "", "replace (", *replaced, ")", ""),
    ]
    (folder / "go.mod").write_text("\n".join(lines))
    return folder


def _published(go: str, folder: Path, modules: Sequence[str]) -> dict[str, str]:
    """Module → version. A few modules miss some patch releases; the next one is the same code."""
    _, minor, patch = RELEASE.split(".")
    found: dict[str, str] = {}
    for number in range(int(patch), int(patch) + _PATCH_RELEASES_TRIED):
        version = f"v0.{minor}.{number}"
        asked = [f"{name}@{version}" for name in modules if name not in found]
        if not asked:
            break
        text = run_go(go, folder, "list", "-m", "-e", "-json=Path,Version,Error", *asked)
        for each in _documents(text):
            if "Error" not in each:
                found[each["Path"]] = version
    lacking = [name for name in modules if name not in found]
    if lacking:
        raise Missing(f"no release 0.{minor} of {', '.join(lacking)} is published")
    return found


def _documents(text: str) -> list[dict[str, str]]:
    """JSON objects that follow each other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text.rstrip()):
        document, at = decoder.raw_decode(text, at)
        found.append(document)
        at += len(text[at:]) - len(text[at:].lstrip())
    return found


def main(names: Sequence[str]) -> int:
    """Provide those named, else all; what some tests need only may be missing then, and is told."""
    try:
        found = provide(names or CONTROL_PLANE)
    except Missing as error:
        print(error, file=sys.stderr)
        return 1
    for name in () if names else BESIDE:
        try:
            found |= provide((name,))
        except Missing as error:
            print(f"{error}; the tests that need it are skipped", file=sys.stderr)
    for name, path in found.items():
        print(f"{name}: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
