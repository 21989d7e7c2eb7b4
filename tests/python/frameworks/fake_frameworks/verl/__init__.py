import os

__version__ = os.environ.get("FAKE_VERL_VERSION", "0.9.1")
