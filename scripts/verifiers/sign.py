"""Signs random bodies with libraries that others wrote, a line for each, for `received` to judge: how many bodies.

A line is: source, secret, body in base64, and headers as name=value, with tabs between them.
"""

import base64
import json
import random
import sys
from datetime import datetime, timezone

import standardwebhooks
import svix
from slack_sdk.signature import SignatureVerifier

chance = random.Random(7)


def line(source, secret, body, headers):
    fields = [source, secret, base64.b64encode(body.encode()).decode()]
    print("\t".join(fields + [f"{name}={value}" for name, value in headers.items()]))


def main(count):
    now = datetime.now(tz=timezone.utc).replace(microsecond=0)
    time = str(int(now.timestamp()))
    for number in range(count):
        text = "".join(chr(chance.choice([chance.randrange(32, 127), chance.randrange(160, 0xD7FF)])) for _ in range(number % 300))
        body = json.dumps({"number": number, "text": text}, ensure_ascii=number % 2 == 0)
        shared = "whsec_" + base64.b64encode(chance.randbytes(24 + number % 41)).decode()
        plain = chance.randbytes(16).hex()
        for name, library in (("webhook", standardwebhooks), ("svix", svix)):
            signature = library.Webhook(shared).sign(f"msg_{number}", now, body)
            line("standard", shared, body, {f"{name}-id": f"msg_{number}", f"{name}-timestamp": time, f"{name}-signature": signature})
        signature = SignatureVerifier(plain).generate_signature(timestamp=time, body=body)
        line("slack", plain, body, {"x-slack-request-timestamp": time, "x-slack-signature": signature})


main(int(sys.argv[1]))
