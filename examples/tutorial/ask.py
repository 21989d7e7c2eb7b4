#!/usr/bin/env python3
"""Asks the server of this folder: ask.py QUESTION. Prints the answer and its time."""
from __future__ import annotations

import http.client
import os
import sys
import time
import urllib.parse

PORT = int(os.environ.get("TUTORIAL_PORT", "8765"))

began = time.monotonic()
connection = http.client.HTTPConnection("127.0.0.1", PORT)
connection.request("GET", "/" + urllib.parse.quote(sys.argv[1]))
answer = connection.getresponse().read().decode()
print(f"{answer} (after {time.monotonic() - began:.1f} s)")
