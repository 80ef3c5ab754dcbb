"""FragmentationGradient: place pods where the least GPU becomes useless for the pods that usually come.

`demand` is what a pod asks for, `workload` what pods usually ask for (learned), `card_values` what a part of a card
is worth to them, `target` both as arrays, `gradient` what of a node they can use, `scarcity` which models of cards
they will lack, `books` what is known of each row, `plugin` the extension points. docs/gpu-packing.md has the formulas.
"""
