"""NodeNUMAResource: which CPUs and NUMA nodes a pod gets. Source: behaviour/numa-cpu.

Pure: `cpu_topology` is the machine, `topology_options` what its report says, `holdings` what node and report say
together and what pods have, `node_allocation` what is left and picks CPUs, `allocate` splits requests
over NUMA nodes, `hint_merge` asks providers and chooses the NUMA nodes, `policy` decides who binds CPUs where, `score`
how well a node suits, `reservations` what those give back, `admission` puts it together for one node.

Fast: columns (`allocations`) summarise all nodes, `bulk` answers from them for many at once, `node_view` for one in
plain integers; both say what `admission` says, and leave to it what only a trial can tell.

Live: `allocations` keep who holds what, `plugin` is the plugin, `explained` what people see and what others chose.
"""
