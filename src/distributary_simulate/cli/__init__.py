"""The commands `simulate` and `demo`, plugged into the product's command line."""
