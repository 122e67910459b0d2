"""What the peers run that have no command of their own: each a process, as their users would write it."""
