"""DeviceShare: which GPUs, NICs and other devices a pod gets. Source: behaviour/devices.

`request` is what a pod asks for, `inventory` what a node has and what of it is left, `pick` the choice among
equal devices, `partition` and `topology` that of GPUs which are linked, `allocate` all types of a pod together,
`score` how well a device or a node suits. All of it is pure.
"""
