"""The descheduler's decisions: which pods to move off hot, full or wrongly chosen nodes, safely.

Pure so far: no loop runs these decisions yet. Source: behaviour/descheduler.
"""
