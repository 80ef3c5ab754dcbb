"""LoadAwareScheduling: nodes that are hot in reality are avoided, cold ones preferred.

Requests are not usage. NodeMetric reports tell what nodes use; pods too young to show there count with an
estimate. `args` configuration, `estimate` what a pod will use, `load` the bookkeeping of one node, `usage`
the formulas over rows, `plugin` the extension points. Source: behaviour/scheduler part I.
"""
