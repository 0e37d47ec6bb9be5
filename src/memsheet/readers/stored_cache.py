"""What a quantized checkpoint names for the cache of keys and values: eight bits with the scales it brings,
or nothing.
"""

from __future__ import annotations

from memsheet.readers.fields import Fields

ALGORITHMS = {"FP8": "fp8", "NVFP4": "nvfp4"}
"""``kv_cache_quant_algo`` (``READ_IN``)."""


def cache_scheme(stored: Fields) -> tuple[str | None, bool]:
    """A dtype's name, and whether the checkpoint brings one symmetric scale a tensor for it. None where the
    config names none.
    """
    if stored.raw("kv_cache_scheme") is None:
        name = stored.text("kv_cache_quant_algo", default="")
        return ALGORITHMS.get(name.upper()), bool(name)
    scheme = stored.sub("kv_cache_scheme")
    bits, kind = (
        scheme.count("num_bits", default=8),
        scheme.text("type", default="float", choices=("int", "float")),
    )
    fixed = scheme.text("strategy", default="tensor") == "tensor" and scheme.flag("symmetric", default=True)
    fixed = fixed and not scheme.flag("dynamic", default=False)
    match kind, bits:
        case "float", 8:
            return "fp8", fixed
        case "float", 4:
            return "nvfp4", fixed
        case _:
            hint = "without kv_cache_scheme the cache is as the model computes; --kv-dtype says otherwise"
            scheme.wrong("num_bits", bits, f"{kind} of {bits} bits is no cache that is served", hint)
            return None, False
