"""`python -m sharpen`."""

import sys

from sharpen.cli import main

sys.exit(main())
