// Signs random bodies with libraries that others wrote, a line for each, for `received` to judge: how many bodies.
// A line is: source, secret, body in base64, and headers as name=value, with tabs between them.
import { randomBytes } from "node:crypto";
import { sign } from "@octokit/webhooks-methods";
import Stripe from "stripe";

const stripe = new Stripe("sk_test_unused");
const time = Math.floor(Date.now() / 1000);

function line(source, secret, body, headers) {
  const fields = Object.entries(headers).map(([name, value]) => `${name}=${value}`);
  console.log([source, secret, Buffer.from(body).toString("base64"), ...fields].join("\t"));
}

for (let number = 0; number < Number(process.argv[2]); number += 1) {
  const body = JSON.stringify({ number, text: randomBytes(number % 300).toString("latin1") });
  const secret = randomBytes(20).toString("hex");
  const header = stripe.webhooks.generateTestHeaderString({ payload: body, secret: `whsec_${secret}`, timestamp: time });
  line("stripe", `whsec_${secret}`, body, { "stripe-signature": header });
  line("github", secret, body, { "x-hub-signature-256": await sign(secret, body), "x-github-delivery": `d-${number}` });
}
