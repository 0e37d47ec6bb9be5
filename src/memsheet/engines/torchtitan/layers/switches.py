"""Names of what torchtitan's layers do one way or another, as a plan's way to run lists them."""

COMPILED, COMPILED_LOSS, FUSED_NORM, REPEATS, FP8_PRODUCTS, FP8_GATHERED, RING, ALL_GATHER, ASYNC = (
    "compiled", "compiled loss", "fused norm", "repeats kv", "fp8", "fp8 gathered", "ring", "all-gathered kv", "async tp",
)  # fmt: skip
COSINES = "cosines and sines"
"""Rotations are a table of cosines and sines, not one of complex numbers."""
OWN_ROTATIONS = "own rotations"
"""Each layer takes the rows of its tokens from a table of its own."""
REDUCED_HEAD = "reduced head"
"""The loss reduces the gradient of the head's table before backward begins."""
NORMED_SHARES = "normed shares"
"""What a token's experts say is weighted by shares of one."""
