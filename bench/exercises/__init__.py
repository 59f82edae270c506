"""Six exercises in speculative decoding, each a script with a table and a plot."""
