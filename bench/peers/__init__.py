"""The same work by peers: `python -m bench.peers` sets them up, runs them one after the other, writes docs/peers.md."""
