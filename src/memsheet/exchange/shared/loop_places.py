"""Where what a script's own loop says stands among its values."""

LOOP = "loop"
