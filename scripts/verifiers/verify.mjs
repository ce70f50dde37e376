// Judges the lines of `vectors` with libraries for JavaScript: those of the standard and of services that use it.
import { createInterface } from "node:readline";
import { createPublicKey, verify as verifyEd25519 } from "node:crypto";
import { Webhook as Standard } from "standardwebhooks";
import { Webhook as Svix } from "svix";
import OpenAI from "openai";
import Stripe from "stripe";
import Mux from "@mux/mux-node";
import { verify as verifyGithub } from "@octokit/webhooks-methods";

const stripe = new Stripe("sk_test_unused");
const openai = new OpenAI({ apiKey: "unused" });
const mux = new Mux({ tokenId: "unused", tokenSecret: "unused" });

const names = (prefix, vector) => ({
  [`${prefix}-id`]: vector.id,
  [`${prefix}-timestamp`]: vector.time,
  [`${prefix}-signature`]: vector.standard,
});

const orThrow = (fits) => {
  if (!fits) throw new Error("they do not fit");
};

// No library verifies v1a: what Standard Webhooks says to do.
const ed25519 = (vector, body) => {
  const x = Buffer.from(vector.public.slice(5), "base64").toString("base64url");
  const key = createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x }, format: "jwk" });
  const signature = vector.ed25519.split(" ").find((part) => part.startsWith("v1a,")).slice(4);
  const text = Buffer.from(`${vector.id}.${vector.time}.${body}`);
  orThrow(verifyEd25519(null, text, key, Buffer.from(signature, "base64")));
};

// Each takes a vector, a body and one of two secrets, and throws if they do not fit.
const verifiers = {
  standardwebhooks: (vector, body, secret) => new Standard(secret).verify(body, names("webhook", vector)),
  svix: (vector, body, secret) => new Svix(secret).verify(body, names("svix", vector)),
  openai: (vector, body, secret) => openai.webhooks.verifySignature(body, names("webhook", vector), secret),
  stripe: (vector, body, secret) => stripe.webhooks.signature.verifyHeader(body, vector.stripe, secret, 300),
  "@mux/mux-node": (vector, body, secret) =>
    mux.webhooks.verifySignature(body, { "mux-signature": vector.stripe }, secret),
  // GitHub's form has one signature, by the newest secret.
  "@octokit/webhooks-methods": async (vector, body) => orThrow(await verifyGithub(vector.secret, body, vector.github)),
  "v1a by hand": (vector, body) => ed25519(vector, body),
};

let count = 0;
for await (const line of createInterface({ input: process.stdin })) {
  const vector = JSON.parse(line);
  const body = Buffer.from(vector.body, "base64").toString();
  for (const [name, verify] of Object.entries(verifiers)) {
    for (const secret of [vector.secret, vector.old]) await verify(vector, body, secret);
    let refused = false;
    try {
      await verify(vector, `${body} `, vector.secret);
    } catch {
      refused = true;
    }
    if (!refused) throw new Error(`${name} accepted a changed body`);
  }
  count += 1;
}
console.log(`JavaScript: ${count} bodies accepted, and changed ones refused, by ${Object.keys(verifiers).join(", ")}`);
