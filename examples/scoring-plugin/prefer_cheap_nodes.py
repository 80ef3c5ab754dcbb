"""PreferCheapNodes: the cheaper a node is per hour, the higher its score."""

import contextlib

import msgspec
import numpy as np

from koordinator.scheduler.plugin_api import SCORE_MAX, ColumnSpec, RowKeeper, ScorePlugin


class Args(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    label: str = "example.com/price-per-hour"
    price_max: float = 10.0


class PreferCheapNodes(ScorePlugin[None], RowKeeper):
    name = "PreferCheapNodes"
    args = Args

    def __init__(self, args, handle):
        super().__init__(args, handle)
        self.label, self.price_max = args.label, args.price_max

    @classmethod
    def columns_of(cls, args):
        return (ColumnSpec("price", np.float64, fill=args.price_max),)

    def node_changed(self, row, node):
        price = self.price_max
        with contextlib.suppress(ValueError):  # a label that is no number: as dear as can be
            price = float(node.metadata.labels.get(self.label, price))
        self.handle.columns["price"].values[row] = np.clip(price, 0, self.price_max)

    def score(self, state, rows):
        price = self.handle.columns["price"].values[rows]
        return np.int64(SCORE_MAX * (1 - price / self.price_max))
