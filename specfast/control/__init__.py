"""What the budget decides with: costs, survival, depths and gates."""
