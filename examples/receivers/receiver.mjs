// Receives Postrider's deliveries. Needs `npm install standardwebhooks`.
//
//     WEBHOOK_SECRET=whsec_... node receiver.mjs 8090
import { createServer } from "node:http";
import { Webhook } from "standardwebhooks";

const webhook = new Webhook(process.env.WEBHOOK_SECRET);
const BODY_MAX = 1 << 20;

// Stands for a table with a unique key. Here a restart forgets it; in a database, insert the id in the transaction of the effect.
const seen = new Set();

async function enter(id, body) {
  if (seen.has(id)) return;
  seen.add(id);
  try {
    console.log(`entered ${id}`); // the effect
  } catch (error) {
    seen.delete(id); // or the next copy would be taken for done
    throw error;
  }
}

createServer(async (request, response) => {
  const answer = (status) => response.writeHead(status, { "content-length": 0 }).end();
  const length = Number(request.headers["content-length"] ?? Number.NaN);
  if (Number.isNaN(length)) return answer(411);
  if (length > BODY_MAX) return answer(413);
  try {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const body = Buffer.concat(chunks); // the bytes as they came: no JSON parser in front
    try {
      webhook.verify(body, request.headers, { jsonParse: false }); // not every payload is JSON
    } catch {
      return answer(401);
    }
    await enter(request.headers["webhook-id"], body);
    answer(204); // a duplicate, too
  } catch {
    answer(503); // nothing was written, so have it sent again
  }
}).listen(Number(process.argv[2]), "127.0.0.1");
