"""The worked example of docs/write-a-plugin.md, installed as a user installs it: by pip, found by entry point."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "scoring-plugin"
TUTORIAL = REPOSITORY / "docs" / "write-a-plugin.md"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the installed example, as pip leaves it."""
    target = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "prefer_cheap_nodes.py"):
        (source / name).write_text((EXAMPLE / name).read_text())
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    if done.returncode != 0:
        pytest.skip(f"pip cannot build a package here: {done.stderr.strip()[-300:]}")
    return target


def run_example_test(path: list[Path], cwd: Path) -> subprocess.CompletedProcess[str]:
    """The example's own test in a process of its own, with these folders to import from."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(cwd)]
    command += [
        "-c",
        str(cwd / "none.ini"),
        "--import-mode=importlib",
        str(EXAMPLE / "test_prefer_cheap_nodes.py"),
    ]
    (cwd / "none.ini").write_text("[pytest]\n")
    environment = {"PYTHONPATH": ":".join(map(str, [REPOSITORY / "src", *path])), "PATH": "/usr/bin:/bin"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=110, check=False
    )


def test_the_installed_example_is_found_by_its_entry_point_and_changes_placements(
    installed: Path, tmp_path: Path
) -> None:
    assert list(installed.glob("prefer_cheap_nodes-*.dist-info/entry_points.txt"))

    done = run_example_test([installed], tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_without_the_package_the_configuration_is_refused_by_name(tmp_path: Path) -> None:
    done = run_example_test([], tmp_path)

    assert done.returncode == 1
    assert "no plugin is called 'PreferCheapNodes'" in done.stdout


def test_the_tutorial_shows_the_example_as_it_is() -> None:
    text = TUTORIAL.read_text()
    for name in ("pyproject.toml", "prefer_cheap_nodes.py", "scheduler.yaml", "test_prefer_cheap_nodes.py"):
        assert (EXAMPLE / name).read_text().strip() in text, f"{name} differs from docs/write-a-plugin.md"
