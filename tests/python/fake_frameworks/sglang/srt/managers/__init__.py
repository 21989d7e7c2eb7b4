"""As SGLang has it."""
