"""LoadAwareScheduling: nodes that are hot in reality are avoided, cold ones preferred.

Requests are not usage. NodeMetric reports tell what nodes use; pods too young to show there count with an
estimate. `args` configuration, `load` the bookkeeping of one node, estimates and formulas, `judgement` the rules by
which a node is judged, `plugin` the extension points. Source: behaviour/scheduler part I.
"""
