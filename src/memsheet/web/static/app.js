// The form, the address and the panels: what somebody does, asked of the seam and shown by the view.

import { ask, onLoading } from "./seam.js";
import { commandOf, hashOf, nameOf, readHash, requestOf, state } from "./state.js";
import { csvOf, gridTable, make, pictureText, save, showAnswer, showProblem, showScreen } from "./view.js";

const REST_MS = 300, MOST_FILE = 2 ** 20;
const SHOWN = {
  train: ["engine", "seq_len", "microbatch", "global_batch", "zero", "tp", "pp", "precision", "optimizer", "recompute", "attention", "lora_rank", "quantize", "offload"],
  infer: ["engine", "tp", "max_model_len", "sequences", "kv_dtype", "quantize", "memory_fraction", "prompt_tokens"],
};
const RANGES = {
  seq_len: [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072],
  microbatch: [1, 2, 3, 4, 6, 8, 12, 16, 24, 32],
  max_model_len: [1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072],
  sequences: [1, 2, 4, 8, 16, 32, 64, 128, 256],
};
const byId = (id) => document.getElementById(id);
let form, latest = null, asking = null, resting = 0, flying = false, moved = false, theme = null, held = null;

// ---- the form ---------------------------------------------------------------------------------

function optionRow(name) {
  return form.options.find((row) => row.name === name);
}

function control(name, row) {
  const id = `option-${name}`, label = make("label", { for: id }, name.replaceAll("_", " "));
  const said = state.options[name], set = (value) => choose(name, value);
  const choices = name === "engine" ? form.engines[state.question] : row?.choices ?? [];
  const resolved = latest?.view?.resolved?.[name];
  const read = state.files.length && name === "model" ? latest?.view?.question?.name : resolved;
  const assumed = read === undefined ? "" : `${Array.isArray(read) ? read.join(",") : read}`;
  const unset = assumed && (state.files.length ? assumed : `${assumed} (assumed)`);
  const about = row?.words ?? "";
  let field;
  if (row?.kind === "flag") field = selectOf(id, ["true", "false"], said, unset, set);
  else if (choices.length && name !== "quantize" && name !== "offload" && name !== "optimizer") field = selectOf(id, choices, said, unset, set);
  else {
    const list = name === "model" ? "model-names" : name === "gpus" ? "gpu-names" : choices.length ? `${id}-list` : null;
    field = make("input", { id, value: typeof said === "object" ? nameOf(said) : said ?? "", placeholder: unset, list, autocomplete: "off", spellcheck: "false", on: { change: (event) => set(event.target.value.trim()) } });
  }
  if (about) field.title = about;
  const parts = [label, field];
  if (choices.length && field.getAttribute("list") === `${id}-list`) parts.push(make("datalist", { id: `${id}-list` }, ...choices.map((value) => make("option", { value }))));
  if (RANGES[name]) parts.push(slider(name, said ?? assumed, field));
  return make("div", { class: "control" }, ...parts);
}

function selectOf(id, choices, said, words, set) {
  const unset = make("option", { value: "" }, words || "not set");
  const field = make("select", { id, class: said === undefined ? "unset" : "", on: { change: (event) => set(event.target.value) } }, unset, ...choices.map((value) => make("option", { value, selected: String(said) === value }, value)));
  return field;
}

function slider(name, value, field) {
  const steps = RANGES[name];
  const near = steps.reduce((best, step, at) => (Math.abs(step - Number(value)) < Math.abs(steps[best] - Number(value)) ? at : best), 0);
  const range = make("input", { type: "range", min: "0", max: String(steps.length - 1), step: "1", value: String(near), "aria-label": `${name.replaceAll("_", " ")}, in steps` });
  range.addEventListener("input", () => {
    const chosen = String(steps[Number(range.value)]);
    field.value = chosen;
    range.setAttribute("aria-valuetext", chosen);
    state.options[name] = chosen;
    state.given.add(name);
    askSoon();
  });
  range.addEventListener("change", settle);
  range.setAttribute("aria-valuetext", String(value || steps[near]));
  return range;
}

function renderForm() {
  const active = document.activeElement?.id;
  const names = ["model", "gpus", ...SHOWN[state.question]];
  byId("controls").replaceChildren(...names.map((name) => control(name, optionRow(name))));
  const groups = new Map();
  for (const row of form.options) {
    if (names.includes(row.name) || !row.tasks.includes(state.question)) continue;
    groups.set(row.group, [...(groups.get(row.group) ?? []), row]);
  }
  const further = [];
  for (const [group, rows] of groups) further.push(make("h2", {}, group), ...rows.map((row) => control(row.name, row)));
  byId("further-controls").replaceChildren(...further);
  for (const radio of document.querySelectorAll("[name=question]")) radio.checked = radio.value === state.question;
  const files = byId("files");
  files.hidden = !state.files.length;
  files.replaceChildren(...(state.files.length ? [make("p", {}, "Files: ", make("strong", {}, state.files.map((file) => file.name).join(", ")), " ", make("button", { type: "button", on: { click: leaveFiles } }, "Leave them"))] : []));
  if (active) byId(active)?.focus();
}

function choose(name, value) {
  if (value === "" || value === null || value === undefined) delete state.options[name];
  else state.options[name] = value;
  state.given.add(name);
  settle();
}

// Files say their own: what only stood in the form does not override them.
function takeFiles(files) {
  const kept = Object.entries(state.options).filter(([name]) => ["model", "gpus"].includes(name) && state.given.has(name));
  Object.assign(state, { files, options: Object.fromEntries(kept) });
}

function leaveFiles() {
  const { question, ...first } = form.first;
  Object.assign(state, { files: [], options: { ...first, ...state.options } });
  settle();
}

function apply(changes) {
  for (const [name, value] of Object.entries(changes)) {
    state.given.add(name);
    if (value === null && state.files.length && name === "offload") state.options.offload = "none";
    else if (value === null) delete state.options[name];
    else state.options[name] = Array.isArray(value) ? value.join(",") : String(value);
  }
  settle();
  byId("verdict").scrollIntoView({ block: "nearest" });
}

// ---- asking -----------------------------------------------------------------------------------

function busy(is) {
  document.body.dataset.idle = is ? "0" : "1";
}

async function run(more, rough) {
  asking?.abort();
  const own = (asking = new AbortController());
  busy(true);
  try {
    const answer = await ask({ ...requestOf(state), ...more, view: true }, { signal: own.signal });
    if (own !== asking) return;
    if (answer.problem) {
      latest = null;
      showProblem(answer.problem);
    } else {
      latest = answer;
      if (state.files.length) state.question = answer.view.question?.task === "infer" ? "infer" : "train";
      showAnswer(answer, { rough, apply });
    }
    if (!rough) {
      renderForm();
      renderPanel();
    }
  } catch (error) {
    if (error.name !== "AbortError") showProblem({ detail: `no answer: ${error.message}` });
  } finally {
    if (own === asking && !rough) busy(false);
  }
}

// While something is dragged: a rough answer at once, the next as soon as it stands, the exact one at rest.
async function askSoon() {
  busy(true);
  clearTimeout(resting);
  resting = setTimeout(settle, REST_MS);
  moved = true;
  if (flying) return;
  flying = true;
  while (moved) {
    moved = false;
    await run({ fix: false, ...(state.files.length ? {} : { slack: "share" }) }, true);
  }
  flying = false;
}

async function settle() {
  clearTimeout(resting);
  moved = false;
  busy(true);
  const hash = await hashOf(state, theme);
  if (hash !== location.hash) history.pushState(null, "", hash);
  await run({}, false);
}

// ---- panels -----------------------------------------------------------------------------------

const PANELS = { grid: gridPanel, cards: cardsPanel, solve: solvePanel, plan: planPanel, files: filesPanel, compare: comparePanel };
const OF_FORM = new Set(["grid", "cards", "solve", "plan"]);
let open = null;

function select(name, focus) {
  open = open === name && !focus ? null : name;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const own = tab.id === `tab-${open}`;
    tab.setAttribute("aria-selected", String(own));
    tab.tabIndex = own || (!open && tab.id === "tab-grid") ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !own;
    if (own && focus) tab.focus();
  }
  renderPanel();
}

function renderPanel() {
  if (!open) return;
  const panel = byId(`panel-${open}`);
  if (state.files.length && OF_FORM.has(open)) panel.replaceChildren(make("p", { class: "quiet" }, "Of files this is not asked: paste a plan, or leave the files and fill in the form."));
  else PANELS[open](panel);
}

async function inPanel(panel, request, show, options = {}) {
  busy(true);
  panel.replaceChildren(make("p", { class: "quiet" }, "Asking …"));
  try {
    const answer = await ask(request, options);
    const within = panel.contains(document.activeElement) || document.activeElement === document.body;
    panel.replaceChildren(...(answer.problem ? [make("div", { class: "problem" }, answer.problem.detail, ...(answer.problem.errors ?? []).slice(0, 3).map((row) => make("div", { class: "quiet" }, row.hint)))] : show(answer)));
    if (within) panel.querySelector("td.current button")?.focus({ preventScroll: true });
  } catch (error) {
    panel.replaceChildren(make("div", { class: "problem" }, `no answer: ${error.message}`));
  } finally {
    busy(false);
  }
}

const SERVED_GRID = "Across: the longest sequence; down: how many such sequences are to have room at once. Each cell: GiB a GPU, and whether they all have it. A cell takes its plan over.";

function gridPanel(panel) {
  const [x, y] = state.question === "train" ? ["seq_len", "microbatch"] : ["max_model_len", "sequences"];
  const asked = state.question === "train" ? latest?.view?.resolved : {}; // what a server takes by itself is not asked for at once
  const current = { ...(asked ?? {}), ...state.options };
  return inPanel(panel, { ...requestOf(state), question: "grid", task: state.question, x, y }, (answer) => [gridTable(answer.document, { current, go: apply, words: state.question === "train" ? undefined : SERVED_GRID })]);
}

const CARDS = ["RTX4090", "L40S", "A100-80GB", "H100-80GB", "H200", "B200", "MI300X"];

function cardsPanel(panel) {
  const count = /^(\d+)x/i.exec(state.options.gpus ?? "")?.[1] ?? "1", out = make("div", { "aria-live": "polite" });
  const field = (id, words, value) => make("label", { for: id }, `${words} `, make("input", { id, size: "40", value, autocomplete: "off", spellcheck: "false" }));
  const listed = (id) => byId(id).value.split(/[,;\s]+/).filter(Boolean);
  const search = () => {
    const request = { ...requestOf(state), question: "grid", task: state.question, x: "gpus", y: "model", xs: listed("cards-gpus"), ys: listed("cards-models") };
    return inPanel(out, request, (answer) => [gridTable(answer.document, { current: state.options, go: apply, label: "Cards and models" })]);
  };
  panel.replaceChildren(make("p", {}, field("cards-gpus", "Cards", CARDS.map((name) => `${count}x${name}`).join(", "))), make("p", {}, field("cards-models", "Models", state.options.model), " ", make("button", { type: "button", class: "apply", on: { click: search } }, "Put side by side")), out);
}

function solvePanel(panel) {
  const offered = state.question === "train" ? [["seq-len", "Longest sequence"], ["microbatch", "Largest micro-batch"], ["gpus", "Fewest GPUs"]] : [["sequences", "Most sequences at once"], ["max-model-len", "Longest sequence"]];
  const out = make("div", { "aria-live": "polite" });
  panel.replaceChildren(make("p", {}, ...offered.flatMap(([what, words]) => [make("button", { type: "button", on: { click: () => solved(out, what) } }, words), " "])), out);
}

function solved(out, what) {
  const { question, files, ...asked } = requestOf(state);
  if (what === "gpus") asked.gpus = String(asked.gpus ?? "").replace(/^\d+x/i, "");
  const options = { ...asked };
  for (const key of [what.replaceAll("-", "_")]) delete options[key];
  if (what === "gpus") options.gpus = asked.gpus;
  return inPanel(out, { ...options, question: "solve", what, view: true }, (answer) => {
    const { value } = answer.document;
    const taken = what === "gpus" ? { gpus: `${value}x${asked.gpus}` } : { [what.replaceAll("-", "_")]: String(value) };
    return [value ? make("button", { type: "button", class: "apply", on: { click: () => apply(taken) } }, `Take ${Number(value).toLocaleString("en")}`) : null, make("pre", { tabindex: "0" }, answer.view.screen)].filter(Boolean);
  });
}

function planPanel(panel) {
  const out = make("div", { "aria-live": "polite" });
  const stop = new AbortController();
  const search = () => {
    const { question, ...pinned } = requestOf(state);
    const serves = state.question === "infer";
    const context = byId("plan-context")?.value, users = byId("plan-users")?.value;
    const request = serves ? { ...pinned, question: "plan-serving", ...(context ? { context } : {}), ...(users ? { users } : {}), view: true } : { ...pinned, question: "plan", view: true };
    return inPanel(out, request, (answer) => [...planRows(answer), make("pre", { tabindex: "0" }, answer.view.screen)], {
      signal: stop.signal,
      onProgress: (told) => out.replaceChildren(make("p", { class: "quiet" }, progressWords(told))),
    });
  };
  const load = state.question === "infer" ? [make("label", {}, "Tokens of a user's sequence ", make("input", { id: "plan-context", size: "8", value: state.options.max_model_len ?? "8192" })), " ", make("label", {}, "Users at once ", make("input", { id: "plan-users", size: "6" })), " "] : [];
  const kept = Object.entries(state.options).filter(([name]) => !["model", "gpus"].includes(name)).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
  const words = kept.length ? `Kept as set: ${kept.join(", ")}. Everything else is searched.` : "Everything is searched.";
  panel.replaceChildren(make("p", {}, ...load, make("button", { type: "button", class: "apply", on: { click: search } }, "Find the best plans")), make("p", { class: "quiet" }, words), out);
}

function progressWords({ seconds, engine, plans, fit, step_seconds, device_bytes }) {
  const best = fit ? `; the fastest so far: ${step_seconds.toPrecision(3)} s a step, ${(device_bytes / 2 ** 30).toFixed(1)} GiB` : "";
  return `Weighing every legal plan … ${seconds} s${engine ? `: ${plans.toLocaleString("en")} weighed, ${fit.toLocaleString("en")} fit (${engine})${best}` : ""}`;
}

function planRows(answer) {
  const rows = (answer.view.plans ?? []).map((plan) => make("li", {}, make("button", { type: "button", on: { click: () => apply(plan.apply) } }, "Take"), " ", make("strong", {}, plan.needs), ` ${plan.words.join(" · ")}`));
  return rows.length ? [make("ol", { class: "items" }, ...rows)] : [];
}

function filesPanel(panel) {
  const engine = latest?.view?.resolved?.engine ?? latest?.document?.plan?.engine;
  const sheet = latest?.document?.plan ? latest.document : latest?.document?.sheet;
  const names = form.formats.filter((format) => format.engines.includes(engine)).map((format) => format.name);
  const out = make("div");
  const written = (to) => inPanel(out, { question: "export", plan: sheet.plan, to }, (answer) => Object.entries(answer.document.files).filter(([name]) => name !== "sheet.json").map(([name, text]) => fileBlock(name, text)));
  const own = [
    ["sheet.json", () => JSON.stringify(latest.document, null, 1), "application/json"], ["rows.csv", () => csvOf(latest.view), "text/csv"],
    ["memory.svg", pictureText, "image/svg+xml"],
  ];
  panel.replaceChildren(
    ...(sheet?.plan ? [make("p", {}, "Configuration for ", ...names.flatMap((name) => [make("button", { type: "button", on: { click: () => written(name) } }, name), " "]))] : []),
    make("p", {}, "This answer as ", ...(latest?.view ? own.flatMap(([name, text, type]) => [make("button", { type: "button", on: { click: () => save(name, text(), type) } }, name), " "]) : []), make("button", { type: "button", on: { click: savePng } }, "memory.png"), " ", make("button", { type: "button", on: { click: () => print() } }, "Print")),
    out,
  );
}

function savePng() {
  const text = pictureText(), picture = new Image();
  picture.onload = () => {
    const canvas = make("canvas", { width: 1800, height: (1800 * picture.height) / picture.width });
    const pen = canvas.getContext("2d");
    pen.fillStyle = "#fff";
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save("memory.png", blob, "image/png"));
  };
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}

function fileBlock(name, text) {
  return make("div", {}, make("p", {}, make("strong", {}, name), " ", make("button", { type: "button", on: { click: (event) => copy(text, event.target) } }, "Copy"), " ", make("button", { type: "button", on: { click: () => save(name, text) } }, "Download")), make("pre", { tabindex: "0" }, text));
}

function comparePanel(panel) {
  const sheet = latest?.document?.ranks ? latest.document : latest?.document?.sheet;
  const keep = make("button", { type: "button", on: { click: () => { held = { sheet, words: commandOf(state, latest?.view?.question?.name) }; renderPanel(); } } }, "Keep this answer to compare with");
  const out = make("div");
  panel.replaceChildren(make("p", {}, keep, held ? ` Kept: ${held.words}` : " Then change the form: the difference is told row by row."), out);
  if (held && sheet && held.words !== commandOf(state, latest?.view?.question?.name)) inPanel(out, { question: "compare", left: held.sheet, right: sheet, view: true }, (answer) => [make("pre", { tabindex: "0" }, answer.view.screen)]);
}

// ---- what is pasted, copied, pressed ----------------------------------------------------------

async function readPaste(text, name) {
  const said = byId("understood");
  said.classList.remove("wrong");
  busy(true);
  const answer = name ? { document: { request: { question: "check", files: [{ name, text }] }, said: "a file" } } : await ask({ question: "read", text });
  if (answer.problem) {
    said.classList.add("wrong");
    said.textContent = [answer.problem.detail, ...(answer.problem.errors ?? []).map((row) => row.hint)].filter(Boolean).join("; ");
    busy(false);
    return;
  }
  const { request, said: words } = answer.document;
  if (request.question === "diagnose") {
    said.textContent = `Read as ${words}.`;
    return diagnose(request.text, state.given.has("model"));
  }
  const { question, files, plan, ...options } = request;
  said.textContent = `Read as ${words}.`;
  if (files) takeFiles(files);
  else if (question) Object.assign(state, { question, options: {}, files: [] });
  for (const [key, value] of Object.entries(options)) {
    state.options[key] = typeof value === "object" ? value : String(value);
    state.given.add(key);
  }
  if (plan) state.options.plan = plan;
  await (files ? settleFiles() : settle());
}

// A model that was chosen before files came stands where they name none.
async function settleFiles() {
  const { model } = state.options;
  if (typeof model !== "string") return settle();
  delete state.options.model;
  state.standIn = model;
  await settle();
  state.standIn = form.first.model;
  if (latest && latest.view.question?.name !== model) state.given.delete("model");
  else if (model !== form.first.model) choose("model", model);
}

// A job that died: its message alone, or beside the sheet of the form's job.
async function diagnose(text, beside) {
  busy(true);
  const { question, files, model_otherwise, ...job } = requestOf(state);
  const found = await ask({ ...(beside ? job : {}), question: "diagnose", text, view: true });
  if (found.problem) showProblem(found.problem);
  else showScreen(found, state.files.length ? null : make("button", { type: "button", class: "apply", on: { click: () => diagnose(text, !beside) } }, beside ? "The message alone" : "Beside the job of the form"));
  busy(false);
}

// Files that are dropped: a model, a plan, or those of one job together.
async function readFiles(dropped) {
  const [first] = dropped, said = byId("understood");
  const wrong = (words) => {
    said.classList.add("wrong");
    said.textContent = words;
  };
  if (!first) return;
  if (/\.gguf$/i.test(first.name)) {
    const { ggufModel } = await import("./gguf.js");
    const model = await ggufModel(first).catch(() => null);
    if (!model) return wrong(`${first.name} has no header of a GGUF file.`);
    said.classList.remove("wrong");
    said.textContent = `Read as the header of ${first.name}.`;
    Object.assign(state, { question: "infer", options: { ...(state.options.gpus ? { gpus: state.options.gpus } : {}), model }, files: [] });
    return settle();
  }
  const large = dropped.find((file) => file.size > MOST_FILE);
  if (large) return wrong(`${large.name} is larger than ${MOST_FILE / 2 ** 20} MiB, which no configuration is.`);
  const files = await Promise.all(dropped.map(async (file) => ({ name: file.name, text: await file.text() })));
  if (files.length > 1) takeFiles(files);
  if (files.length > 1) return settleFiles();
  return readPaste(files[0].text, /config\.json$|plan.*\.json$/.test(first.name) ? "" : first.name);
}

async function copy(text, button) {
  await navigator.clipboard.writeText(text).catch(() => prompt("Copy", text));
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = before), 1200);
}

function setTheme(name) {
  theme = name;
  if (name) document.documentElement.dataset.theme = name === "d" ? "dark" : "light";
  byId("theme").setAttribute("aria-pressed", String(name === "d"));
}

function listen() {
  byId("paste-form").addEventListener("submit", (event) => {
    event.preventDefault();
    readPaste(byId("paste").value);
  });
  byId("paste").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || byId("paste").value.includes("\n")) return;
    event.preventDefault();
    readPaste(byId("paste").value);
  });
  byId("form").addEventListener("submit", (event) => event.preventDefault());
  for (const radio of document.querySelectorAll("[name=question]")) radio.addEventListener("change", () => { state.question = radio.value; state.files = []; keepShared(); settle(); });
  byId("copy-link").addEventListener("click", (event) => copy(location.href, event.target));
  byId("copy-command").addEventListener("click", (event) => copy(commandOf(state, latest?.view?.question?.name), event.target));
  byId("theme").addEventListener("click", async () => {
    setTheme(theme === "d" ? "l" : "d");
    history.replaceState(null, "", await hashOf(state, theme));
  });
  const tabs = [...document.querySelectorAll("[role=tab]")];
  tabs.forEach((tab, at) => {
    tab.addEventListener("click", () => select(tab.id.replace("tab-", "")));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const to = { Home: 0, End: tabs.length - 1 }[event.key] ?? (step && (at + step + tabs.length) % tabs.length);
      if (to === undefined) return;
      event.preventDefault();
      select(tabs[to].id.replace("tab-", ""), true);
    });
  });
  document.addEventListener("keydown", (event) => {
    const typing = /INPUT|TEXTAREA|SELECT/.test(event.target.tagName);
    if (event.key === "/" && !typing) {
      event.preventDefault();
      byId("paste").focus();
    } else if (event.key === "?" && !typing) byId("further").open = true;
    else if (event.key === "Escape") byId("further").open = false;
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    readFiles([...event.dataTransfer.files]);
  });
  window.addEventListener("popstate", start);
}

function keepShared() {
  const known = new Set(form.options.filter((row) => row.tasks.includes(state.question)).map((row) => row.name));
  for (const name of Object.keys(state.options)) if (optionRow(name) && !known.has(name)) delete state.options[name];
  if (!form.engines[state.question].includes(state.options.engine)) delete state.options.engine;
}

async function start() {
  const found = await readHash(location.hash).catch(() => null);
  if (!found) {
    renderForm();
    busy(false);
    return showProblem({ detail: "This link is damaged: what it holds cannot be read.", errors: [{ field: "link", reason: "is cut off or changed", hint: "ask for it again, or fill in the form" }] });
  }
  Object.assign(state, { question: found.question, options: found.options, files: found.files, given: new Set(Object.keys(found.options)), standIn: form.first.model });
  if (!Object.keys(state.options).length && !state.files.length) {
    const { question, ...options } = form.first;
    Object.assign(state, { question, options: { ...options } });
  }
  setTheme(found.theme);
  renderForm();
  await run({}, false);
}

onLoading((words) => (byId("understood").textContent = words));
form = (await ask({ question: "form" })).document;
byId("model-names").replaceChildren(...form.models.map((value) => make("option", { value })));
byId("gpu-names").replaceChildren(...["1x", "8x"].flatMap((count) => form.gpus.map((gpu) => make("option", { value: count + gpu.name }))));
listen();
await start();
