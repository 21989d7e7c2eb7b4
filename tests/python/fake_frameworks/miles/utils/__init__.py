"""As slime has it."""
