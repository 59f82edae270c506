"""python -m specfast."""

from specfast.cli import main

if __name__ == "__main__":  # processes that write a corpus import it
    main()
