"""Batch, Mid and device resources of nodes: the formulas over arrays of nodes, and the loop that writes them."""
