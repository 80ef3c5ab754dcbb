"""What services outside (extenders) say about the nodes that passed all filters."""

import msgspec

from koordinator.scheduler.plugin.status import SUCCESS, Status, error

NOT_ASKED = error("node(s) came into question while extenders were asked")


class Advice(msgspec.Struct, frozen=True):
    """`asked` are the nodes that they were shown, `refused` those of them that they refuse, `scores` are to be
    added to the totals. `failure`: one that must be heard could not be."""

    asked: frozenset[str] = frozenset()
    refused: dict[str, Status] = {}
    scores: dict[str, int] = {}
    failure: Status = SUCCESS

    def objection(self, node_name: str) -> Status:
        """Why the pod must not go to a node that passes the filters; success when it may."""
        if node_name not in self.asked:
            return NOT_ASKED
        return self.refused.get(node_name, SUCCESS)
