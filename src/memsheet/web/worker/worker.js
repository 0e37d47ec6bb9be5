// The seam without a server: Python in this worker answers what the server's routes would.

import { loadPyodide } from "./pyodide/pyodide.mjs";

async function start() {
  postMessage({ progress: "Loading Python …" });
  const [python, files] = await Promise.all([
    loadPyodide({ indexURL: new URL("./pyodide/", import.meta.url).href }),
    fetch("memsheet.zip").then((found) => found.arrayBuffer()),
  ]);
  postMessage({ progress: "Loading memsheet …" });
  python.unpackArchive(files, "zip", { extractDir: "/memsheet" });
  python.runPython(`
import json, sys
sys.path.insert(0, "/memsheet")
from memsheet.questions.ask import ask

def answer(text):
    return json.dumps(ask(json.loads(text)), allow_nan=False)
`);
  postMessage({ progress: "" });
  return python.globals.get("answer");
}

const ready = start();

onmessage = async ({ data: { id, request } }) => {
  try {
    const answer = await ready;
    postMessage({ id, answer: JSON.parse(answer(JSON.stringify(request))) });
  } catch (error) {
    postMessage({ id, error: String(error.message ?? error) });
  }
};
