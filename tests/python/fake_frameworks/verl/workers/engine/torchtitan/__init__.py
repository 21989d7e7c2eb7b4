"""As verl has it."""
