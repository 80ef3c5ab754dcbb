"""The store on disk: what comes back, what is refused, and that a kill loses no promise."""

import asyncio
import random
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from koordinator.clock import FixedClock
from koordinator.cluster import errors
from koordinator.cluster.backend import DeleteRequest, ListOptions, ObjectRecord
from koordinator.local import registry
from koordinator.local.persistence import FILE_NAME, SqliteJournal, StorageError
from koordinator.local.registry import ObjectRegistry
from tests.local import kill_writer
from tests.local.registry_builders import create, definition, merge, names

KILLS = 4


def start(data_dir: Path) -> ObjectRegistry:
    return registry.on_disk(FixedClock(), data_dir)


def config(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


async def test_objects_survive_a_restart_as_they_were(tmp_path: Path) -> None:
    api = start(tmp_path)
    kept = await create(api, "configmaps", config("kept", x="1"), "default")
    await create(api, "configmaps", config("gone"), "default")
    await merge(api, "configmaps", "kept", {"data": {"x": "2"}})
    await api.delete(api.resolve("", "v1", "configmaps"), "default", "gone", DeleteRequest())
    await api.close()

    again = start(tmp_path)
    record = again.get(again.resolve("", "v1", "configmaps"), "default", "kept")
    assert names(again, "configmaps") == ["kept"]
    assert record.obj["data"] == {"x": "2"}
    assert record.obj["metadata"]["uid"] == kept.obj["metadata"]["uid"]
    assert record.obj["metadata"]["resourceVersion"] == str(record.version)
    await again.close()


async def test_system_objects_are_made_once(tmp_path: Path) -> None:
    api = start(tmp_path)
    await create(api, "configmaps", config("c"), "default")
    uid = api.get(api.resolve("", "v1", "namespaces"), "", "default").obj["metadata"]["uid"]
    await api.close()

    again = start(tmp_path)
    assert again.get(again.resolve("", "v1", "namespaces"), "", "default").obj["metadata"]["uid"] == uid
    await again.close()


async def test_versions_go_on_above_all_that_were_seen(tmp_path: Path) -> None:
    api = start(tmp_path)
    last = await create(api, "configmaps", config("c"), "default")
    await api.close()

    again = start(tmp_path)
    assert again.store.version > last.version
    with pytest.raises(errors.Gone, match=f"too old resource version: {last.version}"):
        options = ListOptions(resource_version=str(last.version))
        again.watch(again.resolve("", "v1", "configmaps"), "", options)
    await again.close()


async def test_indexes_and_custom_resources_come_back(tmp_path: Path) -> None:
    api = start(tmp_path)
    await create(api, "customresourcedefinitions", definition(), api_version="apiextensions.k8s.io/v1")
    await create(api, "widgets", {"metadata": {"name": "w"}}, "default", "example.com/v1")
    body = {
        "metadata": {"name": "p"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
    }
    await create(api, "pods", body, "default")
    await api.close()

    again = start(tmp_path)
    assert again.get(again.resolve("example.com", "v1", "widgets"), "default", "w")
    assert names(again, "pods", field_selector="spec.nodeName=n1") == ["p"]
    await again.close()


async def test_names_and_uids_do_not_repeat_after_a_restart(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        api = start(tmp_path)
        record = await create(api, "configmaps", {"metadata": {"generateName": "c-"}}, "default")
        found.append(record.obj["metadata"])
        await api.close()

    assert found[0]["uid"] != found[1]["uid"]
    assert found[0]["name"] != found[1]["name"]


async def test_many_writers_share_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    write = SqliteJournal._write

    def counted(journal: SqliteJournal, batch: Any) -> Any:
        sizes.append(len(batch))
        return write(journal, batch)

    monkeypatch.setattr(SqliteJournal, "_write", counted)
    api = start(tmp_path)
    await asyncio.gather(*(create(api, "configmaps", config(f"c{i}"), "default") for i in range(200)))
    await api.close()

    assert len(sizes) <= 3
    assert sum(sizes) >= 200


async def test_the_loop_runs_on_while_a_commit_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = start(tmp_path)
    journal = api.store.journal
    loop = asyncio.get_running_loop()
    may_commit = loop.create_future()

    async def slow(*_: Any) -> dict[Any, Exception]:
        await may_commit
        return {}

    assert isinstance(journal, SqliteJournal)
    monkeypatch.setattr(loop, "run_in_executor", slow)
    writing = asyncio.ensure_future(create(api, "configmaps", config("c"), "default"))
    await asyncio.sleep(0.01)

    assert not writing.done()  # not promised before it is on disk
    assert names(api, "configmaps") == ["c"]
    may_commit.set_result(None)
    await writing
    monkeypatch.undo()
    await api.close()


async def test_a_write_that_cannot_be_saved_is_not_promised_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = start(tmp_path)

    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(SqliteJournal, "_write", full)
        with pytest.raises(errors.InternalError, match=r"could not be saved: .*database or disk is full"):
            await create(api, "configmaps", config("first"), "default")
    await create(api, "configmaps", config("second"), "default")
    await api.close()

    again = start(tmp_path)
    assert names(again, "configmaps") == ["first", "second"]
    await again.close()


async def test_an_object_without_json_text_is_not_stored_at_all(tmp_path: Path) -> None:
    api = start(tmp_path)
    table = api.store.table("configmaps")

    with pytest.raises(errors.InternalError, match=r"configmaps default/bad has no JSON text: .*surrogates"):
        table.put("default", "bad", {"metadata": {"name": "bad"}, "data": {"x": "\ud800"}})
    await create(api, "configmaps", config("good"), "default")
    assert names(api, "configmaps") == ["good"]
    await api.close()

    again = start(tmp_path)
    assert names(again, "configmaps") == ["good"]
    await again.close()


async def test_a_row_that_the_database_refuses_fails_its_own_write_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api = start(tmp_path)
    record = (await create(api, "configmaps", config("first"), "default")).obj

    async def write(name: str) -> None:
        assert api.store.journal is not None
        api.store.journal.record("configmaps", "default", name, 99, ObjectRecord(record, 99))
        await api.store.journal.committed()

    results = await asyncio.gather(write("bad\ud800"), write("good"), return_exceptions=True)
    await create(api, "configmaps", config("second"), "default")
    await api.close()

    assert isinstance(results[0], errors.InternalError)
    assert results[1] is None
    assert "a write cannot be saved" in caplog.text
    with sqlite3.connect(tmp_path / FILE_NAME) as db:
        kept = {name for (name,) in db.execute("SELECT name FROM objects WHERE kind = 'configmaps'")}
    assert {"first", "good", "second"} <= kept
    db.close()


@pytest.mark.parametrize(
    "problem",
    [RuntimeError("broken"), MemoryError(), KeyError("x")],
    ids=lambda problem: type(problem).__name__,
)
async def test_no_failure_of_a_commit_leaves_a_writer_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    api = start(tmp_path)

    def broken(*_: Any) -> None:
        raise problem

    with monkeypatch.context() as patched:
        patched.setattr(SqliteJournal, "_write", broken)
        async with asyncio.timeout(5):
            with pytest.raises(errors.InternalError, match="could not be saved"):
                await create(api, "configmaps", config("first"), "default")
    await create(api, "configmaps", config("second"), "default")
    await api.close()

    again = start(tmp_path)
    assert names(again, "configmaps") == ["first", "second"]
    await again.close()


async def test_after_the_end_nothing_is_promised(tmp_path: Path) -> None:
    api = start(tmp_path)
    await api.close()

    with pytest.raises(errors.ServiceUnavailable, match="the server is shutting down"):
        await create(api, "configmaps", config("late"), "default")


async def test_what_has_no_json_text_is_refused_and_harms_nobody(tmp_path: Path) -> None:
    api = start(tmp_path)

    with pytest.raises(errors.BadRequest, match="ConfigMap: the object cannot be written as JSON"):
        await create(api, "configmaps", config("bad", x="\ud800"), "default")
    await create(api, "configmaps", config("good"), "default")

    assert names(api, "configmaps") == ["good"]
    await api.close()


async def test_one_directory_serves_one_process(tmp_path: Path) -> None:
    api = start(tmp_path)

    with pytest.raises(StorageError, match="is in use by another process"):
        start(tmp_path)
    await api.close()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database at all" * 100)

    with pytest.raises(StorageError, match=r"store\.sqlite: is damaged or no database.*move this file away"):
        start(tmp_path)


def test_an_empty_file_is_refused_instead_of_starting_empty(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()

    with pytest.raises(
        StorageError, match=r"store\.sqlite: is empty: its content was lost.*move this file away"
    ):
        start(tmp_path)
    assert (tmp_path / FILE_NAME).stat().st_size == 0


def test_a_log_of_changes_without_its_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"{FILE_NAME}-wal").write_bytes(b"x" * 100)

    with pytest.raises(
        StorageError, match=r"store\.sqlite-wal: holds changes of a file store\.sqlite that is gone"
    ):
        start(tmp_path)


def test_what_a_first_start_left_when_it_was_killed_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / f"{FILE_NAME}.new").write_bytes(b"half of a file")

    start(tmp_path)
    assert not (tmp_path / f"{FILE_NAME}.new").exists()


@pytest.mark.parametrize("kept_bytes", [10, 100, 4096, 9000])
async def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, kept_bytes: int) -> None:
    api = start(tmp_path)
    for number in range(50):
        await create(api, "configmaps", config(f"c{number}", x="1" * 500), "default")
    await api.close()
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:kept_bytes])

    with pytest.raises(StorageError, match="is damaged"):
        start(tmp_path)


def test_the_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as db:
        db.execute("CREATE TABLE songs (title TEXT)")
    db.close()

    with pytest.raises(StorageError, match="is an SQLite file of another program"):
        start(tmp_path)


async def test_a_file_of_another_schema_version_is_refused(tmp_path: Path) -> None:
    await start(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE_NAME) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()

    with pytest.raises(StorageError, match="has schema version 99, and this program reads version 1 only"):
        start(tmp_path)


async def test_an_unreadable_object_is_named(tmp_path: Path) -> None:
    await start(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE_NAME) as db:
        db.execute("INSERT INTO objects VALUES ('pods', 'default', 'web-0', 5, '{')")
    db.close()

    with pytest.raises(StorageError, match="is damaged: pods default/web-0 is not readable"):
        start(tmp_path)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StorageError, match="cannot be opened"):
        start(tmp_path / "file" / "below")


async def test_a_kill_at_any_moment_loses_no_acknowledged_write(tmp_path: Path) -> None:
    rng = random.Random(4)
    promised: dict[str, str] = {}
    touched: set[str] = set()
    versions: list[int] = []
    for round_ in range(KILLS):
        lines = _run_and_kill(tmp_path, f"r{round_}", acks=rng.randint(50, 600))
        versions.append(int(lines[0].split()[1]))
        for line in lines[1:]:
            name, value = line.split()
            promised[name] = value
            touched.add(name)

    api = start(tmp_path)
    configs = api.resolve("", "v1", "configmaps")
    found = {
        r.obj["metadata"]["name"]: r.obj["data"]["x"] for r in api.list(configs, "", ListOptions()).records
    }
    for name, value in promised.items():
        _check_promise(name, value, found.get(name, "-"))
    assert versions == sorted(set(versions))
    assert len(promised) >= 50 * KILLS / 2
    await api.close()


def _check_promise(name: str, promised: str, found: str) -> None:
    # The step after the last promise may have been saved before the kill.
    steps = {0: ["1"], 1: ["1", "2"], 2: ["1", "-"]}[int(name.rsplit("-", 1)[1]) % 3]
    assert found in steps[steps.index(promised) :], (name, promised, found)


def _run_and_kill(data_dir: Path, prefix: str, acks: int) -> list[str]:
    """Lines that a writer printed before it was killed, somewhere after `acks` of them."""
    command = [sys.executable, "-m", kill_writer.__name__, str(data_dir), prefix]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(acks)]
        child.kill()
        rest = child.stdout.read()
    return [line for line in ("".join(lines) + rest).splitlines(keepends=True) if line.endswith("\n")]
