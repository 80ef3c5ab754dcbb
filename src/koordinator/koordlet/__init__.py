"""The node agent: what runs on each node to measure it, report it and protect its services.

Most modules decide; `writing` is the room that writes to the host. The loops that read the host, ask and hand decisions
to its executor come on top of them.
"""
