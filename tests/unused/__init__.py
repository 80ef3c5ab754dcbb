"""Code that nothing in the product reaches: found by name, so that no decision is kept that only tests call."""
