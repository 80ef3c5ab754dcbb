"""The node table: one row per node, one column per fact; pods as it counts them."""
