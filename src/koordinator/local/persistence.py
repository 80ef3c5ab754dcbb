"""Keeping the store on disk: one SQLite file, and no acknowledged write lost by a kill at any moment.

Changes are collected while a commit runs and written by the next one (group commit), in a thread of its own:
the file system's flush takes milliseconds, during which the loop goes on. SQLite's write-ahead log with
`synchronous=FULL` makes a commit durable when it returns.

Readers may see a write shortly before it is durable. So that a version seen once is never given twice, the
file holds a ceiling above all versions handed out so far, and a restart begins at the ceiling: clients that
have seen more than what was saved are told to list again.
"""

import asyncio
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.cluster import errors
from koordinator.cluster.backend import Record
from koordinator.local.store import Store

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

    Open it, make a `Store(journal.version, journal)`, `load_into` it, and `close` at the end.
    Only one process may use a directory at a time.
    """

    def __init__(self, data_dir: Path) -> None:
        """Open or create the file. Raises: StorageError."""
        self._path = data_dir / FILE_NAME
        self._pending: dict[_Row, tuple[int, Record | None]] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._committer: asyncio.Task[None] | None = None
        self._is_closed = False
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="journal")
        try:
            data_dir.mkdir(parents=True, exist_ok=True)
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
        (objects,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (schema,) = db.execute("PRAGMA user_version").fetchone()
        if objects and application != _APPLICATION_ID:
            raise StorageError(self._path, "is an SQLite file of another program")
        if objects and schema != SCHEMA_VERSION:
            why = f"has schema version {schema}, and this program reads version {SCHEMA_VERSION} only"
            raise StorageError(self._path, why)
        # The lock is held from the first write to the end: a second process is refused at its start.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        if not objects:
            db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            for statement in filter(None, map(str.strip, _SCHEMA.split(";"))):
                db.execute(statement)
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

    def load_into(self, store: Store) -> int:
        """Put everything that was saved into a store; returns the number of objects. Raises: StorageError."""
        count = 0
        for kind, namespace, name, record in self._rows():
            store.table(kind).load(namespace, name, record)
            count += 1
        return count

    def _rows(self) -> Iterator[tuple[str, str, str, Record]]:
        rows = self._db.execute("SELECT kind, namespace, name, version, json FROM objects ORDER BY version")
        decode = msgspec.json.Decoder(dict[str, Any]).decode
        for kind, namespace, name, version, text in rows:
            try:
                yield kind, namespace, name, Record(decode(text), version)
            except msgspec.DecodeError as error:
                where = f"{kind} {namespace}/{name}"
                raise StorageError(self._path, f"is damaged: {where} is not readable: {error}") from error

    # Writing

    def record(self, table: str, namespace: str, name: str, version: int, record: Record | None) -> None:
        """See `store.Journal.record`. Several changes of one object within a batch are written as one."""
        self._pending[(table, namespace, name)] = (version, record)

    async def committed(self) -> None:
        """See `store.Journal.committed`."""
        if self._is_closed:
            raise errors.ServiceUnavailable("the server is shutting down")
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiters.append(waiter)
        if self._committer is None or self._committer.done():
            self._committer = loop.create_task(self._commit_all(), name="journal commits")
        await waiter

    async def _commit_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiters:
            batch, self._pending = self._pending, {}
            waiters, self._waiters = self._waiters, []
            try:
                await loop.run_in_executor(self._executor, self._write, batch)
            except (sqlite3.Error, OSError) as error:
                # What was not saved is tried again with the next batch; until then memory is ahead.
                self._pending = {**batch, **self._pending}
                why = f"the write could not be saved: {self._path}: {error}"
                _resolve(waiters, errors.InternalError(why))
            else:
                _resolve(waiters, None)

    def _write(self, batch: dict[_Row, tuple[int, Record | None]]) -> None:
        """One transaction, in the journal's thread."""
        db = self._db
        removed = [row for row, (_, record) in batch.items() if record is None]
        written = [
            (*row, version, record.json()) for row, (version, record) in batch.items() if record is not None
        ]
        ceiling = self._ceiling
        db.execute("BEGIN IMMEDIATE")
        try:
            db.executemany("DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?", removed)
            db.executemany("REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", written)
            if batch:
                self._raise_ceiling(max(version for version, _ in batch.values()))
            db.execute("COMMIT")
        except sqlite3.Error:
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


def _resolve(waiters: list[asyncio.Future[None]], error: errors.ApiError | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue  # its writer was cancelled
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


def _explained(error: sqlite3.Error) -> str:
    if "locked" in str(error):
        return "is in use by another process"
    if "not a database" in str(error) or "malformed" in str(error):
        return f"is damaged or no database: {error}"
    return f"cannot be used: {error}"
