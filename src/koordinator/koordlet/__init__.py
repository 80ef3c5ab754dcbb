"""The node agent: what runs on each node to measure it, report it and protect its services.

Most modules decide; `executor` is the one that writes to the host. The loops that read the host, ask and hand decisions
to the executor come on top of them.
"""
