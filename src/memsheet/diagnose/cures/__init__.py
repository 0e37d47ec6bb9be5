"""Changes that would have served a request that failed, or would not: each kind in its room."""
