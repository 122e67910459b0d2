"""`python -m distributary`: as the command `distributary`."""

from distributary.cli import main

main()
