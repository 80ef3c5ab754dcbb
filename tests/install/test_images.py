"""The image build files fit the project and the manifests. (They are not built here.)"""

import re
import tomllib
from pathlib import Path

import pytest

from koordinator import __version__
from koordinator.install import objects, workloads
from koordinator.install.values import EVERYTHING

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "images" / "Dockerfile"
BAKE = ROOT / "deploy" / "images" / "docker-bake.hcl"
INSTRUCTIONS = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "LABEL", "ENV", "USER", "ENTRYPOINT"}


def instructions() -> list[tuple[str, str]]:
    """(word, rest) of each, with lines joined and comments left out."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    found = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    return [(word, rest) for word, rest in found]


def stages() -> dict[str, list[tuple[str, str]]]:
    """Name of each stage → its instructions, FROM first."""
    found: dict[str, list[tuple[str, str]]] = {}
    for word, rest in instructions():
        if word == "FROM":
            name = rest.split(" AS ")[1]
            found[name] = []
        if found:
            found[name].append((word, rest))
    return found


def project() -> dict[str, dict[str, object]]:
    parsed: dict[str, dict[str, object]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return parsed


def test_every_stage_starts_from_python_or_from_a_stage_before() -> None:
    assert {word for word, _ in instructions()} <= INSTRUCTIONS
    before: set[str] = set()
    for name, body in stages().items():
        base = body[0][1].split(" AS ")[0]
        assert base == "python:${PYTHON}-slim" or base in before, name
        for word, rest in body:
            source = re.search(r"--from=(\S+)", rest) if word == "COPY" else None
            assert source is None or source[1] in before, rest
        before.add(name)


def test_what_is_copied_and_installed_is_there() -> None:
    for word, rest in stages()["source"]:
        if word == "COPY":
            for path in rest.split()[:-1]:
                assert (ROOT / path).exists(), path
    extras = project()["optional-dependencies"]
    asked = re.findall(r"'\.\[([\w,]+)\]'", DOCKERFILE.read_text()) + re.findall(
        r"ARG EXTRAS=(\S+)", DOCKERFILE.read_text()
    )
    assert asked == ["node"]
    assert {extra for each in asked for extra in each.split(",")} <= extras.keys()


@pytest.mark.parametrize(("image", "user"), [("koordinator", workloads.USER_ID), ("koordlet", 0)])
def test_an_image_runs_its_program_as_the_manifests_say(image: str, user: int) -> None:
    body = dict(stages()[image])
    assert body["USER"] == f"{user}:{user}"
    scripts = project()["scripts"]
    (entry,) = re.findall(r'\["([\w-]+)"\]', body["ENTRYPOINT"])
    assert entry in scripts
    commands = {
        container["command"][0]
        for each in objects.objects(EVERYTHING)
        if each["kind"] in ("Deployment", "DaemonSet")
        for container in each["spec"]["template"]["spec"]["containers"]
        if container["image"] == f"{image}:{__version__}"
    }
    assert entry in commands and commands <= scripts.keys()


def test_bake_builds_every_image_for_both_architectures_under_the_name_of_the_manifests() -> None:
    text = BAKE.read_text()
    code = re.sub(r"#.*", "", text)
    assert code.count("{") == code.count("}") and code.count('"') % 2 == 0
    assert 'platforms  = ["linux/amd64", "linux/arm64"]' in code
    assert f'variable "TAG" {{\n  default = "{__version__}"' in code
    assert (ROOT / re.findall(r'dockerfile = "(.+)"', code)[0]).is_file()

    targets = set(re.findall(r'^target "(.+)" \{', code, flags=re.M)) - {"common"}
    assert targets == set(re.findall(r'"(.+?)"', re.findall(r"targets = \[(.+)\]", code)[0]))
    assert targets == set(re.findall(r'^  target   = "(.+)"', code, flags=re.M)) <= stages().keys()
    wanted = {
        container["image"]
        for each in objects.objects(EVERYTHING)
        if each["kind"] in ("Deployment", "DaemonSet")
        for container in each["spec"]["template"]["spec"]["containers"]
    }
    tags = {tag.replace("${TAG}", __version__) for tag in re.findall(r'"" \? "(.+?)"', code)}
    assert tags == wanted
