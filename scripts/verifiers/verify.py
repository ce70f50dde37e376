"""Judges the lines of `vectors` with libraries for Python: those of the standard and of services that use it."""

import base64
import json
import sys

import openai
import standardwebhooks
import stripe
import svix
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from gidgethub import ValidationFailure
from gidgethub.sansio import validate_event

client = openai.OpenAI(api_key="unused")


def names(prefix, vector):
    return {
        f"{prefix}-id": vector["id"],
        f"{prefix}-timestamp": vector["time"],
        f"{prefix}-signature": vector["standard"],
    }


def ed25519(vector, body):
    """No library verifies v1a: what Standard Webhooks says to do."""
    signature = next(part[4:] for part in vector["ed25519"].split(" ") if part.startswith("v1a,"))
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(vector["public"].removeprefix("whpk_")))
    public.verify(base64.b64decode(signature), f'{vector["id"]}.{vector["time"]}.'.encode() + body)


# Each takes a vector, a body and one of two secrets, and raises what it raises if they do not fit.
VERIFIERS = {
    "standardwebhooks": (
        lambda vector, body, secret: standardwebhooks.Webhook(secret).verify(body, names("webhook", vector)),
        standardwebhooks.WebhookVerificationError,
    ),
    "svix": (
        lambda vector, body, secret: svix.Webhook(secret).verify(body, names("svix", vector)),
        svix.WebhookVerificationError,
    ),
    "openai": (
        lambda vector, body, secret: client.webhooks.verify_signature(
            body.decode(), names("webhook", vector), secret=secret
        ),
        openai.InvalidWebhookSignatureError,
    ),
    "stripe": (
        lambda vector, body, secret: stripe.WebhookSignature.verify_header(
            body.decode(), vector["stripe"], secret, 300
        ),
        stripe.SignatureVerificationError,
    ),
    "gidgethub": (
        # GitHub's form has one signature, by the newest secret.
        lambda vector, body, secret: validate_event(body, signature=vector["github"], secret=vector["secret"]),
        ValidationFailure,
    ),
    "v1a by hand": (lambda vector, body, secret: ed25519(vector, body), InvalidSignature),
}

count = 0
for line in sys.stdin:
    vector = json.loads(line)
    body = base64.b64decode(vector["body"])
    for name, (verify, refusal) in VERIFIERS.items():
        for secret in (vector["secret"], vector["old"]):
            verify(vector, body, secret)
        try:
            verify(vector, body + b" ", vector["secret"])
        except refusal:
            continue
        raise SystemExit(f"{name} accepted a changed body")
    count += 1
print(f"Python: {count} bodies accepted, and changed ones refused, by {', '.join(VERIFIERS)}")
