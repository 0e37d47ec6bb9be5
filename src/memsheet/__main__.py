"""``python -m memsheet``: the command line."""

import sys

from memsheet.cli import main

if __name__ == "__main__":
    sys.exit(main())
