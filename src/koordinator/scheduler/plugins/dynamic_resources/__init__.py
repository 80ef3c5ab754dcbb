"""DynamicResources: pods go where the devices of their claims are (`resource.k8s.io/v1`).

`inventory` the devices of all slices in columns · `demand` what a pod's claims ask for and may get · `allocator` the
search on one node · `supply` the same for many nodes at once, and what is written of it · `claim_allocations` which
claims a pod has, what is allocated, promised and written.
"""
