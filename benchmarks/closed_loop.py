"""Days with the closed loop on and off: CPU used, and what batch costs the same services, over several seeds.

`--trace FILE` (again for more) follows the CPU use of real machines; without, the built-in day. `--without PART` (again
for more) prints a day without each of these parts of the protection instead of on and off.
"""

import argparse
import time
from pathlib import Path

from koordinator.simulate import summary
from koordinator.simulate.run import simulate
from koordinator.simulate.scenario import PARTS, Scenario, switched_off


def _print(scenario: Scenario, what: str) -> None:
    started_s = time.process_time()
    day = summary.summarise(simulate(scenario, colocation=True))
    growth = [
        100 * (with_batch / alone - 1)
        for with_batch, alone in (
            (day.latency_p99_ms, day.latency_p99_alone_ms),
            (day.latency_p999_ms, day.latency_p999_alone_ms),
        )
    ]
    name = "built-in" if scenario.trace is None else scenario.trace.name.split(".")[0]
    print(
        f"{name:20}  seed {scenario.seed}  {what:20}  "
        f"CPU {100 * day.cpu_use_ratio:5.1f} %  p99 {growth[0]:+5.1f} %  p99.9 {growth[1]:+5.1f} %  "
        f"slow minutes {day.slow_minutes:3}, longest {day.longest_slow_s:3.0f} s  evictions {day.evictions:5}  "
        f"batch {day.batch_core_hours:8.0f} core-hours, thrown away {day.batch_lost_core_hours:6.0f}  "
        f"({time.process_time() - started_s:.0f} s)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--seed", type=int, action="append", help="again for more (1)")
    parser.add_argument("--trace", type=Path, action="append")
    parser.add_argument("--loop", choices=("on", "off", "both"), default="both")
    parser.add_argument("--without", choices=sorted(PARTS), action="append")
    asked = parser.parse_args()
    loops = {"on": ("",), "off": ("closed-loop",), "both": ("", "closed-loop")}[asked.loop]
    for trace in asked.trace or (None,):
        for seed in asked.seed or (1,):
            whole = Scenario(nodes=asked.nodes, hours=asked.hours, seed=seed, trace=trace)
            for part in asked.without or loops:
                _print(switched_off(whole, filter(None, (part,))), f"without {part}" if part else "whole")


if __name__ == "__main__":
    main()
