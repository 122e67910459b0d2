"""Sources: config -> streaming DataFrame, with the envelope's columns and what is known of each row's origin."""
