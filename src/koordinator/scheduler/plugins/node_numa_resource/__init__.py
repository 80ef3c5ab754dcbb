"""NodeNUMAResource: which CPUs and NUMA nodes a pod gets. Source: spec 04.

`cpu_topology` is the machine, `topology_options` what its report says, `ledger` what pods hold and what is left,
`accumulator` picks CPUs, `allocate` splits requests over NUMA nodes, `hints` and `hint_merge` choose the NUMA
nodes, `policy` decides who binds CPUs where, `score` how well a node suits. All of it is pure.
"""
