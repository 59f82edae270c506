"""What to run, and whether it is worth it: drafters tried, predicted, measured, recommended."""
