"""A profile at work: its plugins, made once, and what all its filters together say about a pod."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Pod
from koordinator.api.label_selector import Labels, compile_selector
from koordinator.cluster.plugin_registry import PluginRegistry
from koordinator.descheduler import configuration
from koordinator.descheduler.actions import Actions
from koordinator.descheduler.configuration import DeschedulerConfig, ProfileConfig
from koordinator.descheduler.plugin import (
    BalancePlugin,
    DeschedulePlugin,
    EvictPlugin,
    FilterPlugin,
    LiveHandle,
    Observation,
    Plugin,
)
from koordinator.descheduler.plugins.low_node_load.cycle import LowNodeLoad


async def _nothing_to_prepare(_: Observation) -> str:
    return ""


class Pass(msgspec.Struct, frozen=True):
    """One plugin's turn in a cycle."""

    plugin: str
    start: Callable[[Observation], Actions[object]]
    prepare: Callable[[Observation], Awaitable[str]] = _nothing_to_prepare


class Profile:
    """Plugins by extension point. `config` is checked, so every name is known and stands where it can."""

    def __init__(
        self,
        config: ProfileConfig,
        whole: DeschedulerConfig,
        registry: PluginRegistry[Plugin],
        handle: LiveHandle,
    ) -> None:
        self.name = config.name
        self.takes_part: Callable[[Labels], bool] = compile_selector(config.node_selector or LabelSelector())
        handle = msgspec.structs.replace(
            handle, may_evict=self.may_evict, may_evict_now=self.may_evict_now, refusal=self.refusal
        )
        enabled = config.enabled
        self.plugins: dict[str, Plugin] = {}
        for name in (*enabled.deschedule, *enabled.balance, *enabled.evict, *enabled.filter):
            if name not in self.plugins:
                plugin = registry[name]
                args = plugin.read(config.raw_args(name))
                if plugin is LowNodeLoad:
                    args = configuration.low_node_load_args(whole, args)
                self.plugins[name] = plugin(args, handle)
        self.filters = [one for one in self._of(enabled.filter) if isinstance(one, FilterPlugin)]
        [self.evictor] = [one for one in self._of(enabled.evict) if isinstance(one, EvictPlugin)]
        self.deschedule = [
            Pass(one.name, one.deschedule)
            for one in self._of(enabled.deschedule)
            if isinstance(one, DeschedulePlugin)
        ]
        self.balance = [
            Pass(one.name, one.balance, one.prepare_balance)
            for one in self._of(enabled.balance)
            if isinstance(one, BalancePlugin)
        ]

    def _of(self, names: Sequence[str]) -> list[Plugin]:
        return [self.plugins[name] for name in names]

    async def prepare(self) -> None:
        """A cycle begins: have the filters look up what they need."""
        for one in self.filters:
            await one.prepare()

    def refusal(self, pod: Pod) -> str:
        """Return why the pod may not be evicted, with the plugin that says so; empty when all let it pass."""
        for one in self.filters:
            if reason := one.refusal(pod):
                return f"{one.name}: {reason}"
        return ""

    def may_evict(self, pod: Pod) -> bool:
        return not self.refusal(pod)

    def may_evict_now(self, pod: Pod) -> bool:
        return not any(one.late_refusal(pod) for one in self.filters)
