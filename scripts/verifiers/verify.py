"""Judges the lines of `vectors` with the official libraries for Python."""

import base64
import hashlib
import hmac
import json
import sys

import stripe
import standardwebhooks
import svix
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

count = 0
for line in sys.stdin:
    vector = json.loads(line)
    body = base64.b64decode(vector["body"])
    for secret in (vector["secret"], vector["old"]):
        for prefix, library in (("webhook", standardwebhooks), ("svix", svix)):
            headers = {
                f"{prefix}-id": vector["id"],
                f"{prefix}-timestamp": vector["time"],
                f"{prefix}-signature": vector["standard"],
            }
            library.Webhook(secret).verify(body, headers)
        stripe.WebhookSignature.verify_header(body.decode(), vector["stripe"], secret, 300)
    # There is no official library for Python here: what GitHub's documentation says to do.
    expected = hmac.new(vector["secret"].encode(), body, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(f"sha256={expected}", vector["github"])
    # Nor does one verify v1a: what Standard Webhooks says to do.
    signature = next(part[4:] for part in vector["ed25519"].split(" ") if part.startswith("v1a,"))
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(vector["public"].removeprefix("whpk_")))
    text = f'{vector["id"]}.{vector["time"]}.'.encode() + body
    public.verify(base64.b64decode(signature), text)
    # What was changed is refused.
    try:
        standardwebhooks.Webhook(vector["secret"]).verify(body + b" ", {
            "webhook-id": vector["id"], "webhook-timestamp": vector["time"], "webhook-signature": vector["standard"],
        })
        raise SystemExit("a changed body was accepted")
    except standardwebhooks.WebhookVerificationError:
        pass
    count += 1
print(f"Python: {count} bodies accepted by standardwebhooks, svix and stripe")
