"""Find what is wrong with an installation, why it matters, and what to do: `koordinator doctor`.

`gather` reads a cluster once, `checks` are pure functions over what it found.
"""
