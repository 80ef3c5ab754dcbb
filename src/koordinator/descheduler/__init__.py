"""The descheduler's decisions: which pods to move off hot, full or wrongly chosen nodes, safely.

`descheduler` puts it together, `cycle` runs plugins, `migration` evicts. Source: behaviour/descheduler.
"""
