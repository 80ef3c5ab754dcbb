"""FragmentationGradient: place pods where the least GPU becomes useless for the pods that usually come.

`demand` is what a pod asks for, `card_values` what a part of a card is worth, `target` what pods usually ask for
(learned, and as arrays) and which models of cards they will lack, `gradient` what of a node they can use, `books` what
is known of each row, `plugin` the extension points. docs/gpu-packing.md has the formulas.
"""
