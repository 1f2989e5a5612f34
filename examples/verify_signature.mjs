// Is a request from the bridge? Ten lines for an endpoint in Node; `body` is what came, byte for byte, in a Buffer.
import { createHmac, timingSafeEqual } from "node:crypto";

// Of the request it needs `method`, `url` (the path with the query) and `headers`, whose names are in lower case.
// False for a wrong signature, and for one that is older than five minutes.
export function isFromBridge({ method, url, headers }, body, secret, now = Date.now() / 1000) {
  const timestamp = headers["x-bridge-timestamp"] ?? "";
  if (!/^[0-9]+$/.test(timestamp) || Math.abs(now - Number(timestamp)) > 300) return false;
  const digest = createHmac("sha256", secret).update(`${timestamp}\n${method}\n${url}\n`).update(body).digest("hex");
  const [ours, theirs] = [`v1=${digest}`, headers["x-bridge-signature"] ?? ""].map((text) => Buffer.from(text));
  return ours.length === theirs.length && timingSafeEqual(ours, theirs);
}
