"""A bench against a prediction from separate measurements, and the gap to the ideal in parts."""
