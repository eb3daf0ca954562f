"""`python -m tenuto.cli`, for launchers that take a module."""

from tenuto.cli import main

main()
