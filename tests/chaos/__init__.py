"""Kills: every kind of pipeline is killed by SIGKILL at random moments, and its tables are held against the truth.

    python -m tests.chaos --seed 1 --kills 200 --json bench/results/chaos.json

`messages` and `changes` write what comes in, byte by byte, and remember what must come out; they share no code with the
product, its simulators or its `verify`. `tables` reads what did come out, by delta-rs alone.
"""
