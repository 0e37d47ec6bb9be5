"""vLLM: its drafts and adapters (``server`` puts them together)."""
