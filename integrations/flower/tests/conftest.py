"""Settings of all tests here."""

import os
import signal
import sys

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a deployment's processes end with the tests
