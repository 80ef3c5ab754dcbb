"""DeviceShare: which GPUs, NICs and other devices a pod gets. Source: behaviour/devices.

`request` is what a pod asks for, `inventory` what a node has and what of it is left, `pick` how well devices
suit and the choice among equal ones, `partition` that of GPUs which are linked, `allocate` all types of a pod together.
All of it is pure.
"""
