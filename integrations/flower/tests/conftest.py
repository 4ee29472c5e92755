"""Settings of all tests here."""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
