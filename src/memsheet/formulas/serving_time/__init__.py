"""Seconds of a server's passes, as intervals: one token of a batch (``decode_time``), and the prompt before
the first (``prefill_time``).
"""

from memsheet.formulas.serving_time.speeds import End
from memsheet.formulas.serving_time.times import Seconds, Timer, decode_time, prefill_time, token_time

__all__ = ["End", "Seconds", "Timer", "decode_time", "prefill_time", "token_time"]
