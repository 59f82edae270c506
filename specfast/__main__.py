"""python -m specfast."""

from specfast.cli import main

main()
