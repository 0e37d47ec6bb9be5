"""Strangers' files read as data: config.json, safetensors and GGUF headers → ModelSpec."""
