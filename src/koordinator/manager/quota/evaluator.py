"""Reserving what pods ask for in their quotas at creation: the shell around `evaluation` (behaviour/manager 18).

Pods of one quota wait together and are decided in the order of their arrival, with one write for all of them;
at most `WORKERS` quotas are worked on at a time. A pod is admitted only after the write, which is refused
when the quota has changed since it was read: so no limit is exceeded, however many instances there are.
"""

import asyncio
import random
from collections import OrderedDict, deque
from collections.abc import Iterable

import msgspec

from koordinator.api import labels
from koordinator.api.errors import KoordinatorError, ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.api.resource_list import Amounts
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster import errors
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.supervise import Guard
from koordinator.manager.options import QuotaUpdateOptions
from koordinator.manager.quota import evaluation
from koordinator.manager.quota.evaluation import QuotaEvaluation
from koordinator.manager.quota.tree import BY_NAME, names_of

WORKERS = 16
WRITTEN_MAX = 100
"""Quotas whose last write is kept until the watch shows it: those written within its delay."""


class QuotaEvaluationError(KoordinatorError):
    """The quota could not be asked, which is not the pod's fault: try again."""


class _Waiter(msgspec.Struct):
    """A pod that waits for its decision."""

    request: Amounts
    decision: "asyncio.Future[QuotaEvaluation]"


class QuotaEvaluator:
    """Decides for all pods of this instance. `rng` draws the pauses after conflicts."""

    def __init__(
        self, cluster: Cluster, factory: InformerFactory, options: QuotaUpdateOptions, rng: random.Random
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._rng = rng
        self._quotas = factory.informer(ElasticQuota)
        self._quotas.add_index(BY_NAME, names_of)
        self._written: OrderedDict[str, ElasticQuota] = OrderedDict()
        self._waiting: dict[str, deque[_Waiter]] = {}  # by quota; one worker for each key
        self._slots = asyncio.Semaphore(WORKERS)
        self._workers: set[asyncio.Task[None]] = set()
        self.guard = Guard("quota evaluation")

    async def admit(self, name: str, request: Amounts, *, dry_run: bool = False) -> QuotaEvaluation:
        """Return whether the quota of that name has room for a pod; if so, and if this is no dry run, reserve the
        room.

        Raises: QuotaLookupError when none or several have the name, ProtocolError or QuantityError when its
        amounts are malformed, QuotaEvaluationError when it could not be written in time.
        """
        found = evaluation.find(self._quotas.by_index(BY_NAME, name), name)
        if found is None:
            return QuotaEvaluation(True)
        decision = evaluation.decide(self._newest(found), request)
        if dry_run or not decision.delta:
            return decision  # those that wait could only take more
        waiter = _Waiter(request, asyncio.get_running_loop().create_future())
        self._enqueue(found.key, waiter)
        try:
            async with asyncio.timeout(evaluation.TIMEOUT_S):
                return await waiter.decision
        except TimeoutError:
            raise QuotaEvaluationError(evaluation.TIMEOUT_MESSAGE) from None

    def _enqueue(self, key: str, waiter: _Waiter) -> None:
        if key in self._waiting:
            self._waiting[key].append(waiter)
            return
        self._waiting[key] = deque([waiter])
        worker = asyncio.get_running_loop().create_task(self._work(key), name=f"quota evaluation {key}")
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)

    async def _work(self, key: str) -> None:
        """Decide batch after batch until nobody waits; between two batches other quotas get the slot."""
        try:
            while self._waiting[key]:
                async with self._slots:
                    batch = list(self._waiting[key])
                    self._waiting[key].clear()
                    error = await self.guard.call_async(self._decide, key, batch)
                    _fail(batch, error or QuotaEvaluationError(f"quota {key} was not decided"))
        finally:
            _fail(self._waiting.pop(key), QuotaEvaluationError(f"quota {key}: evaluation ended"))

    async def _decide(self, key: str, batch: list[_Waiter]) -> None:
        """Answer everybody in the batch, after writing what is admitted; a conflict decides anew."""
        namespace, _, name = key.partition("/")
        cached = self._quotas.get(name, namespace)
        quota = None if cached is None else self._newest(cached)
        slept_s, tries = 0.0, 0
        while quota is not None:
            try:
                admitted, used = _sort_out(quota, batch)
            except (ProtocolError, QuantityError) as error:
                _fail(batch, error)
                return
            if not admitted:
                return
            try:
                await self._write(quota, used)
            except (errors.ApiError, TimeoutError) as error:
                tries += 1
                if tries > evaluation.retries(len(admitted), self._options.max_retries):
                    _fail(batch, QuotaEvaluationError(f"quota {key} could not be updated: {error}"))
                    return
                slept_s += await self._pause(slept_s)
                quota = await self._reread(quota, error)
            else:
                for waiter, decision in admitted:
                    _answer(waiter, decision)
                return
        _fail(batch, evaluation.QuotaLookupError(name, f"elastic quota {name} not found"))

    async def _write(self, quota: ElasticQuota, used: Amounts) -> None:
        """Only the annotation, and only if the quota is still the one that was read."""
        metadata = quota.metadata
        annotations = {labels.QUOTA_CHILD_REQUEST: evaluation.child_request_text(used)}
        patch = {"metadata": {"resourceVersion": metadata.resource_version, "annotations": annotations}}
        async with asyncio.timeout(evaluation.TIMEOUT_S):
            written = await self._cluster.patch(ElasticQuota, metadata.name, patch, metadata.namespace)
        self._remember(written)

    async def _pause(self, slept_s: float) -> float:
        options = self._options
        if options.retry_jitter_s <= 0:
            return 0.0
        pause_s = evaluation.retry_pause_s(
            options.retry_jitter_s, slept_s, options.max_total_jitter_s, self._rng
        )
        await asyncio.sleep(pause_s)
        return pause_s

    async def _reread(self, refused: ElasticQuota, error: Exception) -> ElasticQuota | None:
        """Return the quota after a failed write; None when it is gone.

        From the cache, unless that still has the very version that was refused (reading it again could only
        fail again) or `--quota-update-conflict-fresh-get` asks for the API server's.
        """
        metadata = refused.metadata
        is_gone = isinstance(error, errors.NotFound)
        if not is_gone and not self._options.conflict_fresh_get:
            cached = self._quotas.get(metadata.name, metadata.namespace)
            newest = None if cached is None else self._newest(cached)
            if newest is None or newest.metadata.resource_version != metadata.resource_version:
                return newest
        try:
            async with asyncio.timeout(evaluation.TIMEOUT_S):
                fresh = await self._cluster.get(ElasticQuota, metadata.name, metadata.namespace)
        except errors.NotFound:
            return None
        except (errors.ApiError, TimeoutError):
            return refused  # the next write tells, and counts as a try
        self._remember(fresh)
        return fresh

    def _remember(self, quota: ElasticQuota) -> None:
        self._written[quota.key] = quota
        self._written.move_to_end(quota.key)
        if len(self._written) > WRITTEN_MAX:
            self._written.popitem(last=False)

    def _newest(self, cached: ElasticQuota) -> ElasticQuota:
        """Return the newest quota: what we wrote or read ourselves, as long as the watch is behind it."""
        written = self._written.get(cached.key)
        return written if written is not None and _version(written) > _version(cached) else cached


def _sort_out(
    quota: ElasticQuota, batch: list[_Waiter]
) -> tuple[list[tuple[_Waiter, QuotaEvaluation]], Amounts]:
    """Return who of those that still wait may be admitted, once the sum is written; everybody else is answered."""
    waiting = [waiter for waiter in batch if not waiter.decision.done()]
    decisions, used = evaluation.evaluate_batch(
        evaluation.limit_of(quota), [waiter.request for waiter in waiting]
    )
    admitted = []
    for waiter, decision in zip(waiting, decisions, strict=True):
        if decision.delta:
            admitted.append((waiter, decision))
        else:
            _answer(waiter, decision)
    return admitted, used


def _answer(waiter: _Waiter, decision: QuotaEvaluation) -> None:
    if not waiter.decision.done():  # whoever waited too long is gone
        waiter.decision.set_result(decision)


def _fail(batch: Iterable[_Waiter], error: Exception) -> None:
    for waiter in batch:
        if not waiter.decision.done():
            waiter.decision.set_exception(error)


def _version(quota: ElasticQuota) -> int:
    text = quota.metadata.resource_version
    return int(text) if text.isdecimal() else 0
