// Two endpoints that http_tools.toml makes tools of. Standard library only:
//
//   SHOP_SECRET=choose-something-long node node_service.mjs [PORT]
import { createServer } from "node:http";
import { isFromBridge } from "./verify_signature.mjs";

const secret = process.env.SHOP_SECRET;
if (!secret) throw new Error("set SHOP_SECRET to the secret that the bridge signs its requests with");

const orders = new Map([["A-1001", { number: "A-1001", item: "desk lamp", state: "on its way", due: "2026-03-14" }]]);
const booked = new Map(); // by Idempotency-Key: a request that comes again gets the first answer again

createServer(async (request, answer) => {
  const body = Buffer.concat(await request.toArray());
  const [status, value] = respond(request, body);
  console.log(`${request.method} -> ${status} for call ${request.headers["x-bridge-call"]}`);
  answer.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(value));
}).listen(Number(process.argv[2] ?? 3000), "127.0.0.1", function () {
  console.log(`listening on http://127.0.0.1:${this.address().port}`);
});

function respond(request, body) {
  if (!isFromBridge(request, body, secret)) return [401, { error: "the request is not signed properly" }];
  const [, kind, id] = decodeURIComponent(request.url).split("/");
  if (request.method === "GET" && kind === "orders") {
    return orders.has(id) ? [200, { order: orders.get(id) }] : [404, { error: "There is no order of that number." }];
  }
  if (request.method === "POST" && kind === "callbacks") return book(request.headers["idempotency-key"], JSON.parse(body));
  return [404, { error: "There is nothing here." }];
}

function book(key, { day, hour, phone }) {
  if (!booked.has(key)) {
    const taken = [...booked.values()].some((each) => each.day === day && each.hour === hour);
    if (taken) return [409, { error: "That hour is taken already." }];
    booked.set(key, { booking: `C-${booked.size + 1}`, day, hour, phone: phone ?? "unknown" });
  }
  return [201, booked.get(key)];
}
