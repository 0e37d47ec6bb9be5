"""Serving with transformers: weights, caches, work."""
