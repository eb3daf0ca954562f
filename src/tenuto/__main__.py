"""`python -m tenuto`, for when the command itself is not on the path."""

from tenuto.cli import main

main()
