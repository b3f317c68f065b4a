"""`python -m potluck`: the command, where it is not on the path."""

from potluck.cli import main

main()
