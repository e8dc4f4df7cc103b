"""The pure modules, without a store."""
