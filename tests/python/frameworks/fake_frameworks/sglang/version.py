import os

__version__ = os.environ.get("FAKE_SGLANG_VERSION", "0.5.17")
