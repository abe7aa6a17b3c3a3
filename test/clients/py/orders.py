"""The conversation between the driver and a client in Python.

One order per line on standard input, one answer per line on standard output; proto.go has the
other side. Called by: boto.py, obs.py. What it does not do: anything about S3.
"""

import json
import sys


class Cannot(Exception):
    """The library has no such thing."""


def serve(handlers, refusal):
    """Answer until standard input ends. refusal(error) gives (status, code)."""
    for line in sys.stdin:
        order = json.loads(line)
        handler = handlers.get(order["op"])
        try:
            if handler is None:
                raise Cannot("no operation " + order["op"])
            answer = handler(order) or {}
        except Cannot as e:
            answer = {"cannot": str(e)}
        except Exception as e:  # whatever it is, the driver judges it
            status, code = refusal(e)
            answer = {"error": f"{type(e).__name__}: {e}", "status": status, "code": code}
        # ASCII on the line: the encoding of the pipe does not matter
        sys.stdout.write(json.dumps({k: v for k, v in answer.items() if v is not None}) + "\n")
        sys.stdout.flush()
