"""`python -m holdfast`, the same as `holdfast`."""

from holdfast.interfaces.cli import main

if __name__ == "__main__":
    main(prog_name="holdfast")
