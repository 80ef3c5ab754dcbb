"""Balance and deschedule plugins: each looks at nodes and pods and says what to evict, and why."""
