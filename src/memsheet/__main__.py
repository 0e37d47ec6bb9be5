"""``python -m memsheet``: the command line."""

import os
import sys

if __name__ == "__main__":
    if sys.path[:1] in ([""], [os.getcwd()]) and not sys.flags.safe_path:  # noqa: PTH109 - as Python itself writes it
        del sys.path[0]  # a stranger's numpy.py may lie in the folder that it was started in
    from memsheet.cli import main

    sys.exit(main())
