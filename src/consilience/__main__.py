"""`python -m consilience` is the command."""

from consilience.cli.main import main

main()
