"""How the hook library comes into a process: by LD_PRELOAD, whatever the mode is called."""
