"""DynamicResources: pods go where the devices of their claims are (`resource.k8s.io/v1`).

`inventory` the devices of all slices in columns · `selection` which of them a
request may get · `demand` what a pod's claims ask for · `allocator` the search on one node · `supply` the same for
many nodes at once · `claim_allocations` which claims a pod has, what is
allocated and promised · `result` and `writes` what is written.
"""
