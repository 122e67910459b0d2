"""The judge: what the tables should hold, worked out once more from the raw records, by code that shares none of the
product's decoding, evolution, order or reduction. Short and plain beats fast here."""
