import os

__version__ = os.environ.get("FAKE_DEEPSPEED_VERSION", "0.19.6")
