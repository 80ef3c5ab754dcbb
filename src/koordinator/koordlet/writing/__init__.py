"""Every write to the node: which files get what and in which order, the journal of what they said, putting it back."""
