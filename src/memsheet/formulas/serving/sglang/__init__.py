"""SGLang: its pools, drafts, adapters and states (``server`` puts them together)."""
