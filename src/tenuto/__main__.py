"""`python -m tenuto`, for when the command itself is not on the path."""

try:
    from tenuto.cli import main
except KeyboardInterrupt:  # before there is anything that could answer it
    raise SystemExit(130) from None

main()
