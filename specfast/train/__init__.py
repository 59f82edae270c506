"""Trains drafters on what the target itself writes: one file a method, one loop for all."""
