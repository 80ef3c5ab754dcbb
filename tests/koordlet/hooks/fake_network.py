"""The host's network commands: a card with disciplines, classes and filters, sets of addresses, rules of iptables."""

from collections.abc import Sequence

from koordinator.koordlet.hooks.hook import CommandResult

GOOD = CommandResult(0, "")
MISSING = CommandResult(127, "", "not installed")


def refused(text: str) -> CommandResult:
    return CommandResult(2, "", text)


class FakeNetwork:
    """Answers as the commands do, remembers what changed; `broken` are words whose commands fail."""

    def __init__(self) -> None:
        self.roots: set[str] = set()
        self.classes: dict[str, dict[str, tuple[str, ...]]] = {}
        self.filters: dict[str, dict[int, tuple[str, ...]]] = {}
        self.sets: dict[str, set[str]] = {}
        self.rules: list[tuple[str, ...]] = []
        self.changes: list[str] = []
        self.asked = 0
        self.missing: set[str] = set()
        self.broken: set[str] = set()

    async def __call__(self, command: Sequence[str], text: str = "") -> CommandResult:
        self.asked += 1
        words = tuple(command)
        if words[0] in self.missing:
            return MISSING
        if self.broken & set(words):
            return refused("Specified qdisc kind is unknown.")
        if words[0] == "tc":
            return self._tc(words)
        return self._ipset(words, text) if words[0] == "ipset" else self._iptables(words)

    def _changed(self, words: Sequence[str]) -> CommandResult:
        self.changes.append(" ".join(words))
        return GOOD

    def _tc(self, words: tuple[str, ...]) -> CommandResult:
        kind, action, card = words[1], words[2], words[4]
        if action == "show":
            return CommandResult(
                0, {"qdisc": self._qdiscs, "class": self._classes, "filter": self._filters}[kind](card)
            )
        if kind == "qdisc":
            if action == "replace":
                self.roots.add(card)
                self.classes[card], self.filters[card] = {}, {}
            elif card in self.roots:
                self.roots.discard(card)
                self.classes.pop(card), self.filters.pop(card)
            else:
                return refused("Cannot delete qdisc with handle of zero.")
            return self._changed(words)
        if card not in self.roots:
            return refused("Failed to find specified qdisc.")
        if kind == "class":
            return self._class(words, card)
        preference = int(words[words.index("pref") + 1])
        if action == "del":
            if self.filters[card].pop(preference, None) is None:
                return refused("Filter with specified priority not found.")
        elif "cgroup" in words and "cgroup" in self.missing:
            return refused("TC classifier not found.")
        else:
            self.filters[card][preference] = words
        return self._changed(words)

    def _class(self, words: tuple[str, ...], card: str) -> CommandResult:
        minor = words[words.index("classid") + 1]
        if words[2] == "replace":
            self.classes[card][minor] = words[words.index("htb") + 1 :]
        elif any("flowid" in each and each[-1] == minor for each in self.filters[card].values()):
            return refused("Device or resource busy")
        elif self.classes[card].pop(minor, None) is None:
            return refused("Class not found")
        return self._changed(words)

    def _qdiscs(self, card: str) -> str:
        if card in self.roots:
            return f"qdisc htb 1: dev {card} root refcnt 2 r2q 10 default 0x2 direct_packets_stat 0\n"
        return f"qdisc pfifo_fast 0: dev {card} root refcnt 2 bands 3\n"

    def _classes(self, card: str) -> str:
        return "".join(f"class htb {minor} root prio 0 rate 1bit\n" for minor in self.classes.get(card, ()))

    def _filters(self, card: str) -> str:
        lines = []
        for preference, words in self.filters.get(card, {}).items():
            head = f"filter protocol ip pref {preference}"
            if "cgroup" in words:
                handle = int(words[words.index("handle") + 1].rstrip(":"), 16)
                lines.append(f"{head} cgroup chain 0 handle {hex(handle << 16)}")
                continue
            address = words[words.index("src") + 1].partition("/")[0]
            octets = "".join(f"{int(each):02x}" for each in address.split("."))
            lines += [f"{head} u32 chain 0", f"{head} u32 chain 0 fh 800: ht divisor 1"]
            lines.append(
                f"{head} u32 chain 0 fh 800::800 order 2048 key ht 800 bkt 0 *flowid {words[-1]} not_in_hw"
            )
            lines.append(f"  match {octets}/ffffffff at 12")
        return "\n".join(lines)

    def _ipset(self, words: tuple[str, ...], text: str) -> CommandResult:
        if words[1] == "list":
            return CommandResult(0, "".join(f"{name}\n" for name in self.sets))
        if words[1] == "destroy":
            if any(words[2] in rule for rule in self.rules):
                return refused("Set cannot be destroyed: it is in use by a kernel component")
            del self.sets[words[2]]
            return self._changed(words)
        for line in text.splitlines():
            action, name, *rest = line.split()
            if action == "create":
                self.sets.setdefault(name, set())
            elif action == "flush":
                self.sets[name].clear()
            elif action == "add":
                self.sets[name].add(rest[0])
            else:
                self.sets[name].discard(rest[0])
        return self._changed((*words, text))

    def _iptables(self, words: tuple[str, ...]) -> CommandResult:
        place = words.index("mangle") + 1
        rule = words[place + 1 :]
        match words[place]:
            case "-C":
                return GOOD if rule in self.rules else CommandResult(1, "", "Bad rule")
            case "-A":
                self.rules.append(rule)
            case _:
                self.rules.remove(rule)
        return self._changed(words)
