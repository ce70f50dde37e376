// Judges the lines of `vectors` with the official libraries for JavaScript.
import { createInterface } from "node:readline";
import { createPublicKey, verify as verifyEd25519 } from "node:crypto";
import { Webhook as Standard } from "standardwebhooks";
import { Webhook as Svix } from "svix";
import Stripe from "stripe";
import { verify as verifyGithub } from "@octokit/webhooks-methods";

const stripe = new Stripe("sk_test_unused");
let count = 0;
for await (const line of createInterface({ input: process.stdin })) {
  const vector = JSON.parse(line);
  const body = Buffer.from(vector.body, "base64").toString();
  for (const secret of [vector.secret, vector.old]) {
    for (const [prefix, Library] of [["webhook", Standard], ["svix", Svix]]) {
      new Library(secret).verify(body, {
        [`${prefix}-id`]: vector.id,
        [`${prefix}-timestamp`]: vector.time,
        [`${prefix}-signature`]: vector.standard,
      });
    }
    stripe.webhooks.signature.verifyHeader(body, vector.stripe, secret, 300);
  }
  if (!(await verifyGithub(vector.secret, body, vector.github))) throw new Error("GitHub's form was refused");
  if (await verifyGithub(vector.secret, body + " ", vector.github)) throw new Error("a changed body was accepted");
  const x = Buffer.from(vector.public.slice(5), "base64").toString("base64url");
  const key = createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x }, format: "jwk" });
  const signature = vector.ed25519.split(" ").find((part) => part.startsWith("v1a,")).slice(4);
  const text = Buffer.from(`${vector.id}.${vector.time}.${body}`);
  if (!verifyEd25519(null, text, key, Buffer.from(signature, "base64"))) throw new Error("v1a was refused");
  count += 1;
}
console.log(`JavaScript: ${count} bodies accepted by standardwebhooks, svix, stripe and @octokit/webhooks-methods`);
