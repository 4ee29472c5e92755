"""Ask a relay on this machine whether it is alive and can write: healthcheck.py PORT. Ends with 0 if it can."""

import ssl
import sys
import urllib.error
import urllib.request


def is_healthy(port: int) -> bool:
    """Try TLS first, whatever the certificate: it need not name loopback."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for scheme in ("https", "http"):
        try:
            with urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}/health", timeout=4, context=context) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError:
            return False  # it answers, and cannot write
        except (OSError, ValueError):
            continue
    return False


if __name__ == "__main__":
    sys.exit(0 if is_healthy(int(sys.argv[1])) else 1)
