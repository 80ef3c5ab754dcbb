"""LowNodeLoad: moves pods from nodes that are hot by measured usage to nodes that are cold.

`usage` reads NodeMetrics, `thresholds` makes limits, `classify` sorts nodes into classes, `detector` waits
until a node has been hot for long enough, `evict` picks pods, `cycle` puts it together.
Source: behaviour/descheduler 6.
"""
