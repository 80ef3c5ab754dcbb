"""Hadoop's own classes: resolved once by Maven into our cache folder.

python -m tests.yarn.hadoop.jars    # fetch what is missing; prints where it is
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

RELEASE = "3.3.6"
_GROUP = "org.apache.hadoop"
_ARTIFACTS = (
    ("hadoop-common", ""),
    ("hadoop-yarn-server-resourcemanager", ""),  # with ZooKeeper, which has a server in its jar
    ("hadoop-yarn-server-nodemanager", ""),
    ("hadoop-yarn-server-timelineservice", ""),  # an import of both
    ("hadoop-yarn-client", ""),
    ("hadoop-mapreduce-client-app", ""),
    ("hadoop-mapreduce-client-jobclient", ""),
    ("hadoop-mapreduce-client-jobclient", "tests"),  # has SleepJob
)
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


class Missing(Exception):
    """Something is not there and cannot be fetched; the message is one line that says what to do."""


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "koordinator" / "hadoop" / RELEASE


def why_missing() -> str:
    """Empty when Hadoop can run here; else a line that names what is missing and what helps."""
    if shutil.which("java") is None:
        return "no java: install a Java 8, 11 or 17 runtime"
    if not (cache_folder() / f"hadoop-yarn-server-resourcemanager-{RELEASE}.jar").exists():
        return f"no Hadoop {RELEASE}: install Maven and run `make test-yarn`, which fetches it"
    return ""


def provide() -> Path:
    """The folder of all jars, fetched where they are missing. Raises: Missing."""
    if why_missing():
        _fetch()
    if why := why_missing():
        raise Missing(why)
    return cache_folder()


def _fetch() -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Missing(why_missing())
    target = cache_folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"fetching Hadoop {RELEASE} into {target} (80 MB)", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        (Path(folder) / "pom.xml").write_text(_project())
        unfinished = Path(folder) / "jars"
        arguments = (f"-DoutputDirectory={unfinished}", "-DincludeScope=runtime")
        done = subprocess.run(
            [maven, "-B", "-q", _COPY, *arguments], cwd=folder, capture_output=True, text=True
        )
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if "ERROR" in line]
            raise Missing(f"Hadoop could not be fetched: {lines[0] if lines else done.stderr}")
        unfinished.rename(target)


def _project() -> str:
    def dependency(artifact: str, classifier: str) -> str:
        more = f"<classifier>{classifier}</classifier>" if classifier else ""
        name = f"<groupId>{_GROUP}</groupId><artifactId>{artifact}</artifactId>"
        return f"<dependency>{name}<version>{RELEASE}</version>{more}</dependency>"

    wanted = "".join(dependency(*each) for each in _ARTIFACTS)
    own = "<groupId>koordinator.test</groupId><artifactId>hadoop</artifactId><version>1</version>"
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"{own}<dependencies>{wanted}</dependencies></project>"
    )


if __name__ == "__main__":
    try:
        print(provide())
    except Missing as error:
        sys.exit(str(error))
