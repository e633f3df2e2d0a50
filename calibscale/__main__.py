"""``python -m calibscale``."""

from calibscale.cli import main

main()
