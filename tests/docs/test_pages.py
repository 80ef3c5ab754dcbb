"""What the pages promise is there: links lead somewhere, commands and flags exist, named modules and targets too."""

import functools
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from koordinator.cli import device_daemon, koordlet, main, manager, scheduler
from koordinator.doctor.checks.all import CHECKS
from tests.docs.pages import PAGES, ROOT, Told, anchors, commands, inline, links, name_of

PROGRAMS: dict[str, click.Command] = {
    "koordinator": main.main,
    "koord-scheduler": scheduler.main,
    "koord-manager": manager.main,
    "koordlet": koordlet.main,
    "koord-device-daemon": device_daemon.main,
}
ONE_DASH = ("koordlet", "koord-device-daemon")
"""Programs whose long flags may have one dash, as Go writes them."""
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PACKAGE = ROOT / "src" / "koordinator"
_MODULE = r"(scheduler|manager|koordlet|local|cluster|host|simulate)(\.[a-z_]+)+"


def told(*programs: str) -> list[Told]:
    found = [each for page in PAGES for each in commands(page, frozenset(programs))]
    assert found, programs
    return found


def resolved(words: tuple[str, ...]) -> tuple[click.Command, list[str]]:
    """The command that is meant, and the words that are left for it."""
    command: click.Command = PROGRAMS[words[0]]
    rest = list(words[1:])
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        kind, slash, name = rest[0].partition("/")
        found = command.get_command(click.Context(command), kind)
        assert found is not None, f"no command {rest[0]}"
        command, rest = found, [name] * bool(slash) + rest[1:]
    return command, rest


def flags(words: list[str]) -> Iterator[str]:
    for word in words:
        if word.startswith("-") and word != "-":
            yield word.partition("=")[0]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_commands_and_their_flags_exist() -> None:
    wrong = []
    for each in told(*PROGRAMS):
        try:
            command, rest = resolved(each.words)
        except AssertionError as error:
            wrong.append(f"{each}: {error}")
            continue
        known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
        known |= {"-h", "--help"}
        for flag in flags(rest):
            also = f"-{flag}" if each.words[0] in ONE_DASH else flag
            if flag not in known and also not in known:
                wrong.append(f"{each}: {flag}")
    assert not wrong


def test_modules_that_are_run_and_targets_that_are_made_exist() -> None:
    for each in told("python", "python3"):
        if "-m" in each.words:
            module = each.words[each.words.index("-m") + 1]
            chosen = each.words[each.words.index("-m") + 2 :]
            if module == "benchmarks" and chosen and not chosen[0].isupper():  # NAME stands for any
                module = f"benchmarks.{chosen[0]}"
            assert importlib.util.find_spec(module) is not None, str(each)
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for each in told("make"):
        wanted = [word for word in each.words[1:] if "=" not in word and not word.startswith("-")]
        assert set(wanted) <= targets, str(each)


def test_the_map_has_every_room() -> None:
    rooms = ARCHITECTURE.read_text().partition("## Rooms\n```\n")[2].partition("\n```\n")[0]
    for path in PACKAGE.iterdir():
        if path.suffix == ".py" and not path.stem.startswith("_"):
            assert re.search(rf"^  {re.escape(path.name)}( |$)", rooms, re.MULTILINE), path.name
        elif (path / "__init__.py").exists():
            assert f"\n  {path.name}/" in rooms, path.name


def test_rooms_are_about_as_big_as_the_map_says() -> None:
    line = re.search(r"^Python files per room, so far: (.*)\.$", ARCHITECTURE.read_text(), re.MULTILINE)
    assert line is not None
    told = {room: int(count) for room, count in re.findall(r"`(\w+)` (\d+)", line[1])}
    for path in PACKAGE.iterdir():
        count = sum(1 for _ in path.rglob("*.py"))
        if count > 5:
            assert abs(told[path.name] - count) <= max(count / 10, 3), f"{path.name} has {count} files"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_names_a_python_file_that_is_gone(page: Path) -> None:
    for name in re.findall(r"[\w/]+\.py\b", page.read_text()):
        assert any(f"/{file}".endswith(f"/{name}") for file in python_files()), name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_names_a_file_of_this_tree_that_is_gone(page: Path) -> None:
    for name in inline(page):
        if re.fullmatch(r"(src|tests|benchmarks|docs|deploy|examples|tools)/[\w./-]+", name):
            assert (ROOT / name).exists(), name


def test_the_map_names_no_module_that_is_gone() -> None:
    for name in inline(ARCHITECTURE):
        if not name.endswith(".py") and re.fullmatch(_MODULE, name):
            path = PACKAGE / name.replace(".", "/")
            # The last part may be something in a module, such as a function.
            files = (path, path.with_suffix(".py"), path.parent.with_suffix(".py"))
            assert any(file.exists() for file in files), name


def test_the_doctors_page_has_each_of_its_checks_in_their_order() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "docs/doctor.md").read_text(), re.MULTILINE)
    assert rows == [each.name for each in CHECKS]


@functools.cache
def python_files() -> tuple[str, ...]:
    tops = ("src", "tests", "benchmarks", "examples", "deploy")
    return tuple(path.relative_to(ROOT).as_posix() for top in tops for path in (ROOT / top).rglob("*.py"))
