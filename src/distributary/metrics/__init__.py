"""What a run says of itself in figures: the list of metrics, the board that keeps them, and the ways out."""
