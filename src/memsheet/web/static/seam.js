// Where answers come from: the server that gave this page, or a worker beside it. One function, ask(request).

const API = "api/v1/";
const LISTS = new Set(["form", "models", "gpus"]);
const listeners = { progress: () => {} };

async function fromServer(request, { signal, onProgress } = {}) {
  const { question, ...asked } = request;
  if (LISTS.has(question)) return { exit_code: 0, document: await (await fetch(API + question, { signal })).json() };
  const events = Boolean(onProgress);
  const response = await fetch(API + question, {
    method: "POST",
    headers: { "content-type": "application/json", ...(events ? { accept: "text/event-stream" } : {}) },
    body: JSON.stringify(asked),
    signal,
  });
  if (events && response.ok) return readEvents(response, onProgress);
  const told = await response.json();
  if (!response.ok) return { exit_code: Number(response.headers.get("memsheet-exit") ?? 2), problem: told };
  return request.view ? told : { exit_code: Number(response.headers.get("memsheet-exit")), document: told };
}

async function readEvents(response, onProgress) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the search ended without an answer");
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const [event, data] = part.split("\n").map((line) => line.slice(line.indexOf(": ") + 2));
      if (event === "progress") onProgress(JSON.parse(data));
      if (event === "done") return asProblem(JSON.parse(data));
    }
  }
}

function asProblem(answer) {
  const { document } = answer;
  if (document.schema !== "memsheet/error/1") return answer;
  const [first] = document.problems;
  return { exit_code: answer.exit_code, problem: { detail: `${first.field}: ${first.reason}`, errors: document.problems } };
}

const keyOf = (request) => JSON.stringify(Object.entries(request).sort());

// The first questions were answered when the site was built: they stand while Python still loads.
async function answersOfSite() {
  const found = await fetch("first.json");
  return new Map((found.ok ? await found.json() : []).map(({ request, answer }) => [keyOf(request), answer]));
}

function workerSeam() {
  const worker = new Worker("worker.js", { type: "module" });
  const known = answersOfSite();
  const waiting = new Map();
  let last = 0;
  worker.onmessage = ({ data }) => {
    if ("progress" in data) return listeners.progress(data.progress);
    const { resolve, reject } = waiting.get(data.id);
    waiting.delete(data.id);
    data.error ? reject(new Error(data.error)) : resolve(asProblem(data.answer));
  };
  return async (request, { signal } = {}) => {
    const answer = (await known).get(keyOf(request));
    if (answer) return answer;
    return new Promise((resolve, reject) => {
      const id = ++last;
      waiting.set(id, { resolve, reject });
      signal?.addEventListener("abort", () => {
        if (waiting.delete(id)) reject(new DOMException("asked anew", "AbortError"));
      });
      worker.postMessage({ id, request });
    });
  };
}

const alone = document.documentElement.dataset.home === "worker";
export const ask = alone ? workerSeam() : fromServer;
export function onLoading(listener) {
  listeners.progress = listener;
}
