// What is asked, kept in the address: only what somebody set, readable, in the order of the form.

// given: names of options that somebody set, which the first question's are not.
export const state = { question: "train", options: {}, files: [], given: new Set(), standIn: "" };
const VERSION = "1";

export async function readHash(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const found = { question: "train", options: {}, files: [] };
  for (const [key, value] of given) {
    if (key === "v" || key === "t") continue;
    if (key === "q") found.question = value === "infer" ? "infer" : "train";
    else if (key.startsWith("z.")) found.options[key.slice(2)] = JSON.parse(await inflate(value));
    else if (key === "f") found.files = JSON.parse(await inflate(value));
    else found.options[key] = value;
  }
  return { ...found, theme: given.get("t"), version: given.get("v") ?? VERSION };
}

export async function hashOf({ question, options, files }, theme) {
  const told = new URLSearchParams({ q: question });
  for (const [key, value] of Object.entries(options)) {
    if (typeof value === "object") told.set(`z.${key}`, await deflate(JSON.stringify(value)));
    else told.set(key, value);
  }
  if (files.length) told.set("f", await deflate(JSON.stringify(files)));
  if (theme) told.set("t", theme);
  return `#${told.toString().replaceAll("%3A", ":").replaceAll("%2F", "/").replaceAll("%2C", ",")}`;
}

// What somebody would call a model that is held as it is.
export const nameOf = (model) => model.gguf?.name ?? model.model_type ?? "config.json";

export function commandOf({ question, options, files, standIn }, shown) {
  const quoted = (text) => (/^[\w./:@,+-]+$/.test(text) ? text : `'${String(text).replaceAll("'", `'\\''`)}'`);
  const { model, plan, ...rest } = options;
  const named = typeof model === "object" ? model.gguf?.name ?? "config.json" : model;
  if (plan) rest.plan = "plan.json";
  const unsaid = files.length && !model && shown === standIn ? { model: standIn } : {};
  const head = files.length ? ["memsheet", "check", ...files.map((file) => file.name)] : ["memsheet", question, named ?? ""];
  const flags = Object.entries(files.length && named ? { model: named, ...rest } : { ...unsaid, ...rest }).map(([key, value]) => {
    const flag = key.replaceAll("_", "-");
    return value === "true" ? `--${flag}` : value === "false" ? `--no-${flag}` : `--${flag} ${quoted(String(value))}`;
  });
  return [...head, ...flags].filter(Boolean).join(" ");
}

export function requestOf({ question, options, files, standIn }) {
  const typed = Object.fromEntries(
    Object.entries(options).map(([key, value]) => [key, value === "true" ? true : value === "false" ? false : value]),
  );
  if (!files.length) return { ...typed, question };
  return { ...(typed.model ? {} : { model_otherwise: standIn }), ...typed, question: "check", files };
}

async function squeeze(bytes, stream) {
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
}

async function deflate(text) {
  const bytes = await squeeze(new TextEncoder().encode(text), new CompressionStream("deflate-raw"));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
  return new TextDecoder().decode(await squeeze(bytes, new DecompressionStream("deflate-raw")));
}
