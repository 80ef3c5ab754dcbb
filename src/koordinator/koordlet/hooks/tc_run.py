"""Carries bandwidth by class out with `tc`, `ipset` and `iptables`. Source: behaviour/koordlet-act 21.

The wanted state is worked out at once; commands run behind, when it differs from what was done, and compare with
what the kernel has. The card is marked before anything is changed, so that a restarted agent removes what it must
not leave.
"""

import logging
from collections.abc import Mapping

from koordinator.api import qos
from koordinator.api.annotations import koordlet as annotations
from koordinator.api.core import Pod
from koordinator.api.errors import KoordinatorError
from koordinator.api.qos import KubeQoS
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_knobs import Knob
from koordinator.koordlet.hooks import tc
from koordinator.koordlet.hooks.contexts import HookResponse, HookStage, PodContext
from koordinator.koordlet.hooks.hook import (
    CommandResult,
    Commands,
    Hook,
    HookRegistry,
    HookTools,
    ReconcileLevel,
    host_runner,
)
from koordinator.koordlet.hooks.tc import NetworkRule, TcClass, TcPlan, TrafficClass
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.view import Topic

log = logging.getLogger(__name__)

CHECK_S = 60.0
"""Interval at which the kernel's state is compared again, and failed commands are repeated."""
_MINOR_MASK = 0xFFFF
NOT_LIMITED = "EgressLimitIgnored"
"""The event on a pod whose address the filters do not know."""


class _Failed(KoordinatorError):
    """A command did not do what it must do before the others make sense."""

    def __init__(self, command: str, done: CommandResult) -> None:
        super().__init__(f"{command}: {done.error or done.output.strip() or f'exit status {done.code}'}")


class TCNetworkQoS(Hook):
    """Services get the bandwidth that they are assured, and no pod sends more than it may."""

    name = "TCNetworkQoS"
    waits = True

    def __init__(self, shared: Shared, tools: HookTools) -> None:
        super().__init__(shared, tools)
        self._rule = self.rule((Topic.NODE_SLO, Topic.ALLOWANCE), lambda: tc.rule_of(shared.view), None)
        self._commands = Commands(tools.runner or host_runner(shared.host), shared.executor, self.name)
        self._minors: dict[str, int] = {}
        """Pods with limits of their own → minor number of their class."""
        self._unlimited: set[str] = set()
        """Pods that were told that their limit has no effect."""
        self._done: TcPlan | None = None
        self._next_check_s = float("-inf")
        self._problem = ""
        self._has_adopted = False

    def register(self, registry: HookRegistry) -> None:
        registry.at_stage(HookStage.PRE_RUN_POD_SANDBOX, self.name, self.of_pod)
        registry.reconcile(ReconcileLevel.POD, (Knob.NET_CLASS,), self.name, self.of_pod)

    def of_pod(self, pod: PodContext) -> HookResponse:
        """Return the class of a pod's packets. Raises: ProtocolError."""
        limit = self._limit(pod.annotations, pod.obj)
        rule = self._rule.value
        root = cgroup_layout.class_dir(self.shared.view.driver, KubeQoS.GUARANTEED)
        if not self._is_on(rule) or not self.shared.host.cgroups.support(Knob.NET_CLASS, root).is_supported:
            return HookResponse()
        record = self.shared.view.pods.get(pod.uid)
        has_class = limit > 0 and (record is None or not _is_beyond_filters(record.pod))
        minor = self._minor_of(pod.uid, pod.group) if has_class else None
        class_id = tc.class_id(qos.of_labels(pod.labels), minor)
        return HookResponse() if class_id is None else HookResponse(files={Knob.NET_CLASS: str(class_id)})

    # Work that waits

    async def follow(self) -> None:
        now_s = self.shared.clock.now()
        if self._rule.value is None or not self.shared.view.has_pods:
            return
        if not self._has_adopted:
            await self._adopt()
        wanted = self._wanted()
        if wanted is None:
            if self._cards():
                await self.close()
            return
        is_early = 0 <= self._next_check_s - now_s <= CHECK_S
        if is_early and (wanted == self._done or self._problem):
            return
        self._next_check_s = now_s + CHECK_S
        try:
            await self._carry_out(wanted)
        except _Failed as error:
            self._done = None
            self._report_problem(str(error))
            return
        self._done, self._problem = wanted, ""

    async def _adopt(self) -> None:
        """Classes that a former run gave to pods, found by their addresses: not every kernel has `net_cls`."""
        self._has_adopted = True
        by_address = {
            record.pod.status.pod_ip: uid
            for uid, record in self.shared.view.pods.items()
            if record.pod.status.pod_ip and not record.pod.spec.host_network
        }
        for card in self._cards():
            shown = await self._commands.look("tc", "filter", "show", "dev", card, "parent", "1:")
            for found in tc.filters(shown.output):
                uid = by_address.get(found.address)
                if uid is not None and found.minor is not None and found.minor not in self._minors.values():
                    self._minors.setdefault(uid, found.minor)

    async def close(self) -> None:
        """Remove all rules, sets, filters, classes and the discipline, where we marked that we made them."""
        self._done = None
        is_gone = True
        for card in self._cards():
            for which in TrafficClass:
                while (await self._commands.look(*tc.rule("-C", which))).is_good:
                    done = await self._commands.change(*tc.rule("-D", which))
                    if not done.is_good or self.shared.executor.is_dry_run:
                        break
                if tc.SETS[which] in (await self._commands.look("ipset", "list", "-n")).output.split():
                    is_gone &= (await self._commands.change("ipset", "destroy", tc.SETS[which])).is_good
            if tc.has_root((await self._commands.look("tc", "qdisc", "show", "dev", card)).output):
                is_gone &= (await self._commands.change(*tc.delete_root(card))).is_good
            if is_gone:
                self.shared.executor.unnote(self._mark(card), owner=self.name)
        self._minors.clear()
        if is_gone:
            self.shared.executor.restore(self.name)
            self.invalidate()

    def disable(self) -> None:
        """Everything is done by `close`."""

    # What is wanted

    def _is_on(self, rule: NetworkRule | None) -> bool:
        return rule is not None and rule.policy == tc.TC and rule.total_bits > 0

    def _limit(self, texts: Mapping[str, str], obj: str) -> int:
        """Return what a pod may send at most, in bytes per second; 0 is no limit of its own. Raises: ProtocolError."""
        limits = annotations.network_limits(texts, obj)
        return limits.egress_bytes_per_s if limits is not None else 0

    def _wanted(self) -> TcPlan | None:
        rule, card = self._rule.value, self.shared.host.machine.default_interface()
        if rule is None or not self._is_on(rule) or not card:
            return None
        pods: list[TcClass] = []
        addresses: dict[TrafficClass, list[str]] = {each: [] for each in TrafficClass}
        for record in self.shared.view.pods.values():
            if record.is_active:
                self._place(record, pods, addresses)
        for uid in [uid for uid in self._minors if uid not in self.shared.view.pods]:
            del self._minors[uid]
        self._unlimited &= self.shared.view.pods.keys()
        if not pods and not tc.is_enabled(rule):
            return None
        total = rule.total_bits // 8
        rates = tc.class_rates(rule.service, rule.best_effort, rule.total_bits)
        ordered = tuple(sorted(pods, key=lambda each: each.minor))
        return TcPlan(
            card=card,
            total_bytes_per_s=total,
            classes=tc.classes(rates, ordered, total),
            pods=ordered,
            addresses={which: tuple(sorted(found)) for which, found in addresses.items()},
        )

    def _place(
        self, record: PodRecord, pods: list[TcClass], addresses: dict[TrafficClass, list[str]]
    ) -> None:
        """A pod goes to a class of its own, or its address to the set of its class.

        Not to both: a packet that iptables has put into a class never reaches the filters.
        """
        pod = record.pod
        # Pods in the host's network have the node's address, which is not theirs alone.
        address = "" if pod.spec.host_network else pod.status.pod_ip
        try:
            limit = self._limit(pod.metadata.annotations, f"Pod {record.key}")
        except KoordinatorError:
            limit = 0  # told when the pod is reconciled
        if _is_beyond_filters(pod):
            if limit > 0:
                self._report_no_limit(record)
        elif limit > 0 and (address or pod.spec.host_network):
            minor = self._minor_of(record.uid, record.group)
            pods.append(TcClass(minor, limit, record.qos, address))
        elif address and (minor_of_class := tc.class_id(record.qos)) is not None:
            addresses[TrafficClass(minor_of_class & _MINOR_MASK)].append(address)

    def _report_no_limit(self, record: PodRecord) -> None:
        if record.uid not in self._unlimited:
            self._unlimited.add(record.uid)
            message = f"network QoS limits IPv4 only: what {record.pod.status.pod_ip} sends is not limited"
            self.shared.events.warning(record.pod, NOT_LIMITED, message)

    def _minor_of(self, uid: str, group: str) -> int:
        """Return the minor number of a pod's class: as before a restart, where its group says it, else a random
        free one.
        """
        if uid in self._minors:
            return self._minors[uid]
        used = set(self._minors.values())
        text = self.shared.host.cgroups.read(Knob.NET_CLASS, group) or ""
        number = int(text) if text.strip().isdigit() else 0
        minor = number & _MINOR_MASK
        if number >> 16 != tc.MAJOR or minor < tc.OWN_MINOR_MIN or minor in used:
            minor = tc.OWN_MINOR_MIN
            while minor in used or minor == tc.OWN_MINOR_MIN:
                minor = self.shared.rng.randint(tc.OWN_MINOR_MIN + 1, tc.OWN_MINOR_MAX)
        self._minors[uid] = minor
        return minor

    # What is done

    async def _carry_out(self, wanted: TcPlan) -> None:
        """Make the kernel say what is wanted; raises: _Failed."""
        card = wanted.card
        for other in self._cards() - {card}:
            await self._must(*tc.delete_root(other))
            self.shared.executor.unnote(self._mark(other), owner=self.name)
        self.shared.executor.note(self._mark(card), card, owner=self.name)
        text = (await self._read("tc", "qdisc", "show", "dev", card)).output
        if not tc.has_root(text):
            self._done = None
            await self._must(*tc.add_root(card))
        await self._set_classes(wanted)
        await self._set_filters(wanted)
        await self._set_addresses(wanted)

    async def _set_classes(self, wanted: TcPlan) -> None:
        card, done = wanted.card, self._done
        present = tc.minors((await self._read("tc", "class", "show", "dev", card)).output)
        known = set(done.classes) if done is not None else set()
        if done is None or done.total_bytes_per_s != wanted.total_bytes_per_s or tc.ROOT_MINOR not in present:
            await self._must(*tc.set_root_class(card, wanted.total_bytes_per_s))
        for each in wanted.classes:
            if each not in known or each.minor not in present:
                await self._must(*tc.set_class(card, each))

    async def _set_filters(self, wanted: TcPlan) -> None:
        """Filters of single pods; then classes that nobody has any more can go."""
        card = wanted.card
        present = tc.filters((await self._read("tc", "filter", "show", "dev", card, "parent", "1:")).output)
        due = {(pod.minor, pod.address): pod for pod in wanted.pods}
        for found in filter(tc.is_of_pod, present):
            if due.pop((found.minor or 0, found.address), None) is None:
                await self._must(*tc.delete_filter(card, found.preference))
        for which in TrafficClass:
            if not any(each.preference == tc.PRIORITIES[which] for each in present):
                # Kernels without this filter still tell pods apart by their addresses.
                await self._commands.change(*tc.add_class_filter(card, which))
        preference = tc.next_preference(present)
        for pod in due.values():
            done = await self._commands.change(*tc.add_pod_filter(card, pod, preference))
            if not done.is_good and pod.address:
                raise _Failed("tc filter add", done)
            preference += 1
        classes = tc.minors((await self._read("tc", "class", "show", "dev", card)).output)
        kept = {each.minor for each in wanted.classes} | {tc.ROOT_MINOR}
        for minor in sorted(classes - kept):
            await self._must(*tc.delete_class(card, minor))

    async def _set_addresses(self, wanted: TcPlan) -> None:
        names = (await self._read("ipset", "list", "-n")).output.split()
        are_there = all(name in names for name in tc.SETS.values())
        known = self._done.addresses if self._done is not None and are_there else None
        text = tc.set_text(known, wanted.addresses)
        if text:
            await self._must("ipset", "-exist", "restore", text=text)
        for which in TrafficClass:
            if not (await self._commands.look(*tc.rule("-C", which))).is_good:
                await self._must(*tc.rule("-A", which))

    async def _read(self, *command: str) -> CommandResult:
        done = await self._commands.look(*command)
        if not done.is_good and not self.shared.executor.is_dry_run:
            raise _Failed(" ".join(command), done)
        return done

    async def _must(self, *command: str, text: str = "") -> None:
        done = await self._commands.change(*command, text=text)
        if not done.is_good:
            raise _Failed(" ".join(command), done)

    def _cards(self) -> set[str]:
        """Cards that were marked as changed by us."""
        return {record.wrote for record in self.shared.executor.changed_by(self.name) if not record.knob}

    def _mark(self, card: str) -> str:
        return f"{self.shared.host.roots.sys}/class/net/{card}"

    def _report_problem(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("network QoS not applied", extra={"problem": problem})
        self._problem = problem


def _is_beyond_filters(pod: Pod) -> bool:
    """Return whether the pod has an address, and one that neither sets nor filters can hold."""
    return not pod.spec.host_network and ":" in pod.status.pod_ip
