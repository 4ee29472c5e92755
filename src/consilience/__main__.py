"""`python -m consilience` is the command."""

from consilience.cli import main

main()
