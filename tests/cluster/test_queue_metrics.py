"""What is counted about work queues."""

import asyncio

from koordinator.cluster.controller import WorkQueue
from koordinator.cluster.metrics import QueueMetrics
from koordinator.prometheus import MetricsRegistry
from koordinator.simulate import virtual_time


def test_a_key_is_counted_from_its_arrival_to_its_end() -> None:
    async def main(_: object) -> None:
        registry = MetricsRegistry()
        queue: WorkQueue[str] = WorkQueue()
        QueueMetrics(registry).watch("nodes", queue)

        queue.add("a")
        queue.add("a")
        queue.add("b")
        await asyncio.sleep(2)
        assert 'workqueue_depth{name="nodes"} 2' in registry.text()

        key = await queue.get()
        await asyncio.sleep(3)
        text = registry.text()
        assert 'workqueue_depth{name="nodes"} 1' in text
        assert 'workqueue_adds_total{name="nodes"} 2' in text
        assert 'workqueue_queue_duration_seconds_sum{name="nodes"} 2' in text
        assert 'workqueue_unfinished_work_seconds{name="nodes"} 3' in text
        assert 'workqueue_longest_running_processor_seconds{name="nodes"} 3' in text

        queue.add_rate_limited(key)
        queue.done(key)
        text = registry.text()
        assert 'workqueue_retries_total{name="nodes"} 1' in text
        assert 'workqueue_work_duration_seconds_sum{name="nodes"} 3' in text
        assert 'workqueue_unfinished_work_seconds{name="nodes"} 0' in text
        queue.close()

    virtual_time.run_virtual(main)
