"""Keeping the store on disk: one SQLite file, and no acknowledged write lost by a kill at any moment.

Changes are collected while a commit runs and written by the next one (group commit), in a thread of its own:
the file system's flush takes milliseconds, during which the loop goes on. SQLite's write-ahead log with
`synchronous=FULL` makes a commit durable when it returns.

Readers may see a write shortly before it is durable. So that a version seen once is never given twice, the
file holds a ceiling above all versions handed out so far, and a restart begins at the ceiling: clients that
have seen more than what was saved are told to list again.

A new file is made under another name and renamed when it is whole, so an empty file is never ours.
"""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.cluster import errors
from koordinator.cluster.backend import ObjectRecord
from koordinator.local.store import ObjectStore

log = logging.getLogger(__name__)

FILE_NAME = "store.sqlite"
SCHEMA_VERSION = 1

VERSIONS_AHEAD = 100_000
"""Versions that may be handed out before the ceiling is raised again: seconds at full speed."""

_APPLICATION_ID = 0x4B4F4F52  # "KOOR": tells our file from any other SQLite file

_SCHEMA = """
CREATE TABLE objects (
    kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    version INTEGER NOT NULL, json BLOB NOT NULL,
    PRIMARY KEY (kind, namespace, name)
) WITHOUT ROWID;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counters VALUES ('version_ceiling', 1);
"""

_Row = tuple[str, str, str]
_Batch = dict[_Row, tuple[int, ObjectRecord | None]]


class StorageError(KoordinatorError):
    """The data directory cannot be used: which file, why, and what to do."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(str(path), reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.reason}. Use another data directory, or move this file away to start empty"
        )


class SqliteJournal:
    """The `store.Journal` in a data directory.

    Open it, make a `ObjectStore(journal.version, journal)`, `load_into` it, and `close` at the end.
    Only one process may use a directory at a time.
    """

    def __init__(self, data_dir: Path) -> None:
        """Open or create the file. Raises: StorageError."""
        self._path = data_dir / FILE_NAME
        self._pending: _Batch = {}
        self._unclaimed: list[_Row] = []  # recorded since somebody last asked whether all is on disk
        self._waiters: list[_Waiter] = []
        self._committer: asyncio.Task[None] | None = None
        self._is_closed = False
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="journal")
        try:
            data_dir.mkdir(parents=True, exist_ok=True)
            _create_missing(self._path)
            self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=0)
        except (OSError, sqlite3.Error) as error:
            raise StorageError(self._path, f"cannot be opened: {error}") from error
        try:
            self._prepare()
            self.version = self._ceiling = self._read_ceiling()
            self._raise_ceiling(self.version)
        except sqlite3.Error as error:
            self._db.close()
            raise StorageError(self._path, _explained(error)) from error
        except StorageError:
            self._db.close()
            raise

    def _prepare(self) -> None:
        db = self._db
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (schema,) = db.execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION_ID:
            raise StorageError(self._path, "is an SQLite file of another program")
        if schema != SCHEMA_VERSION:
            why = f"has schema version {schema}, and this program reads version {SCHEMA_VERSION} only"
            raise StorageError(self._path, why)
        # The lock is held from the first write to the end: a second process is refused at its start.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        db.execute("COMMIT")
        (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise StorageError(self._path, f"is damaged: {found}")

    def _read_ceiling(self) -> int:
        row = self._db.execute("SELECT value FROM counters WHERE name = 'version_ceiling'").fetchone()
        if row is None:
            raise StorageError(self._path, "is damaged: it holds no version counter")
        return int(row[0])

    def _raise_ceiling(self, version: int) -> None:
        """Reserve versions when fewer than half of the reserve are left, long before they are used up."""
        if version + VERSIONS_AHEAD // 2 > self._ceiling:
            ceiling = version + VERSIONS_AHEAD
            self._db.execute("UPDATE counters SET value = ? WHERE name = 'version_ceiling'", (ceiling,))
            self._ceiling = ceiling

    def load_into(self, store: ObjectStore) -> int:
        """Put everything that was saved into a store; returns the number of objects. Raises: StorageError."""
        count = 0
        for kind, namespace, name, record in self._rows():
            store.table(kind).load(namespace, name, record)
            count += 1
        return count

    def _rows(self) -> Iterator[tuple[str, str, str, ObjectRecord]]:
        rows = self._db.execute("SELECT kind, namespace, name, version, json FROM objects ORDER BY version")
        decode = msgspec.json.Decoder(dict[str, Any]).decode
        for kind, namespace, name, version, text in rows:
            try:
                yield kind, namespace, name, ObjectRecord(decode(text), version)
            except msgspec.DecodeError as error:
                where = f"{kind} {namespace}/{name}"
                raise StorageError(self._path, f"is damaged: {where} is not readable: {error}") from error

    # Writing

    def record(
        self, table: str, namespace: str, name: str, version: int, record: ObjectRecord | None
    ) -> None:
        """See `store.Journal.record`. Several changes of one object within a batch are written as one."""
        row = (table, namespace, name)
        if record is not None:
            try:
                record.json()
            except (TypeError, ValueError, RecursionError) as error:
                raise errors.InternalError(f"{_shown(row)} has no JSON text: {error}") from error
        self._pending[row] = (version, record)
        self._unclaimed.append(row)

    async def committed(self) -> None:
        """See `store.Journal.committed`."""
        if self._is_closed:
            raise errors.ServiceUnavailable("the server is shutting down")
        loop = asyncio.get_running_loop()
        rows, self._unclaimed = self._unclaimed, []
        waiter = _Waiter(loop.create_future(), rows)
        self._waiters.append(waiter)
        if self._committer is None or self._committer.done():
            self._committer = loop.create_task(self._commit_all(), name="journal commits")
        await waiter.future

    async def _commit_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiters:
            batch, self._pending = self._pending, {}
            waiters, self._waiters = self._waiters, []
            try:
                refused = await loop.run_in_executor(self._executor, self._write, batch)
            except BaseException as error:
                # What was not saved is tried again with the next batch; until then memory is ahead.
                self._pending = {**batch, **self._pending}
                log.error("writes could not be saved: %s", error, extra={"count": len(batch)})
                for waiter in waiters:
                    waiter.fail(f"the write could not be saved: {self._path}: {error}")
                if not isinstance(error, Exception):
                    raise
                continue
            for row, problem in refused.items():
                log.error("a write cannot be saved: %s", problem, extra={"object": _shown(row)})
            for waiter in waiters:
                waiter.resolve(refused)

    def _write(self, batch: _Batch) -> dict[_Row, Exception]:
        """One transaction, in the journal's thread; what cannot be written in itself, and why.

        Raises: sqlite3.Error, OSError when nothing was written.
        """
        try:
            self._transaction(batch, _execute_all)
        except (sqlite3.OperationalError, OSError):
            raise
        except Exception:
            refused: dict[_Row, Exception] = {}
            self._transaction(batch, lambda db, all_: _execute_each(db, all_, refused))
            return refused
        return {}

    def _transaction(self, batch: _Batch, execute: Callable[[sqlite3.Connection, _Batch], None]) -> None:
        db, ceiling = self._db, self._ceiling
        db.execute("BEGIN IMMEDIATE")
        try:
            execute(db, batch)
            if batch:
                self._raise_ceiling(max(version for version, _ in batch.values()))
            db.execute("COMMIT")
        except BaseException:
            self._ceiling = ceiling
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def abandon(self) -> None:
        """Give the file back without writing anything more."""
        self._is_closed = True
        self._executor.shutdown()
        self._db.close()

    async def close(self) -> None:
        """Write what is left and give the file back. Raises: InternalError when that fails."""
        try:
            if self._pending or self._waiters:
                await self.committed()
        finally:
            self._is_closed = True
            if self._committer is not None:
                await asyncio.wait([self._committer])
            self.abandon()


class _Waiter:
    """A writer that waits until its changes are on disk."""

    __slots__ = ("future", "rows")

    def __init__(self, future: asyncio.Future[None], rows: list[_Row]) -> None:
        self.future = future
        self.rows = rows

    def resolve(self, refused: Mapping[_Row, Exception]) -> None:
        """Note that the batch is on disk but for `refused`."""
        mine = next((row for row in self.rows if row in refused), None)
        if mine is not None:
            self.fail(f"the write of {_shown(mine)} could not be saved: {refused[mine]}")
        elif not self.future.done():
            self.future.set_result(None)

    def fail(self, why: str) -> None:
        if not self.future.done():  # else its writer was cancelled
            self.future.set_exception(errors.InternalError(why))


def _shown(row: _Row) -> str:
    kind, namespace, name = (part.encode(errors="backslashreplace").decode() for part in row)
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"


_DELETE = "DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?"
_REPLACE = "REPLACE INTO objects VALUES (?, ?, ?, ?, ?)"


def _execute_all(db: sqlite3.Connection, batch: _Batch) -> None:
    db.executemany(_DELETE, [row for row, (_, record) in batch.items() if record is None])
    kept = [(*row, version, record.json()) for row, (version, record) in batch.items() if record is not None]
    db.executemany(_REPLACE, kept)


def _execute_each(db: sqlite3.Connection, batch: _Batch, refused: dict[_Row, Exception]) -> None:
    """Write the batch one by one: what the database does not take lands in `refused`, all else is written."""
    for row, change in batch.items():
        try:
            _execute_all(db, {row: change})
        except (sqlite3.OperationalError, OSError):
            raise
        except Exception as error:
            refused[row] = error


def _create_missing(path: Path) -> None:
    """Make the file where there is none. Raises: StorageError, OSError, sqlite3.Error."""
    beside = path.with_name(path.name + "-wal")
    if path.exists():
        if not path.stat().st_size:
            raise StorageError(path, "is empty: its content was lost, by a full disk or a broken copy")
        return
    if beside.exists() and beside.stat().st_size:
        raise StorageError(beside, f"holds changes of a file {path.name} that is gone")
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    db = sqlite3.connect(new, isolation_level=None)
    try:
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        for statement in filter(None, map(str.strip, _SCHEMA.split(";"))):
            db.execute(statement)
        db.execute("COMMIT")
    finally:
        db.close()
    new.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name, too, outlives a loss of power
    finally:
        os.close(folder)


def _explained(error: sqlite3.Error) -> str:
    if "locked" in str(error):
        return "is in use by another process"
    if "not a database" in str(error) or "malformed" in str(error):
        return f"is damaged or no database: {error}"
    return f"cannot be used: {error}"
