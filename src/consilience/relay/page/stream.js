// The relay's events. A browser's EventSource cannot send a token, so the stream is read with fetch.

const SILENCE = 35_000;  // milliseconds without a byte, after which the connection counts as lost

// The relay refused the token, or the request.
export class Refused extends Error {
  constructor(status, content, retryAfter = 0) {
    super(content.message ?? `the relay answered with status ${status}`);
    this.code = content.code ?? "";
    this.retryAfter = retryAfter;
    this.final = status === 401 || status === 403 || ["no-token", "wrong-token", "expired"].includes(this.code);
  }
}

// Calls `onEvent(kind, data)` for each event until the stream ends, which is always an error.
export async function watch(token, onEvent, signal) {
  const silent = new AbortController();
  let timer = setTimeout(() => silent.abort(), SILENCE);
  const either = AbortSignal.any([signal, silent.signal]);
  try {
    const options = { headers: { Authorization: `Bearer ${token}` }, signal: either, cache: "no-store" };
    const response = await fetch("v1/operator/events", options);
    if (!response.ok) { throw await refusal(response); }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) { throw new Error("the connection ended"); }
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), SILENCE);
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) { dispatch(block, onEvent); }
    }
  } finally {
    clearTimeout(timer);
    silent.abort();
  }
}

async function refusal(response) {
  const content = await response.json().catch(() => ({}));
  return new Refused(response.status, content, Number(response.headers.get("retry-after")) || 0);
}

function dispatch(block, onEvent) {
  const lines = block.split("\n");
  const kind = lines.find((line) => line.startsWith("event: "))?.slice(7);
  const data = lines.find((line) => line.startsWith("data: "))?.slice(6);
  if (!kind || !data) { return; }  // a comment, which keeps the connection open
  const content = JSON.parse(data);
  if (kind === "end") { throw new Refused(0, content); }
  onEvent(kind, content);
}
