"""The plugins that come with the scheduler, one module or folder each."""
