// How an answer is shown. Every sentence comes with the answer; names of a stranger's files are text, never markup.

const SVG = "http://www.w3.org/2000/svg";
const GIB = 2 ** 30;
const COLOURS = {
  parameters: "#332288", master_weights: "#88CCEE", gradients: "#117733", optimizer_states: "#44AA99", buffers: "#999933",
  inputs: "#77AADD", saved_activations: "#DDCC77", temporaries: "#CC6677", autograd_detail: "#882255",
  unsharded_parameters: "#AA4499", communication: "#EE7733", kv_cache: "#EEDD88", cuda_graphs: "#FFAABB",
  workspaces: "#BBCC33", allocator_slack: "#DDDDDD", context: "#AAAAAA", unexplained: "#000000",
}; // as report/chart/palette.py

export function make(name, attributes = {}, ...children) {
  const found = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "on") for (const [event, listener] of Object.entries(value)) found.addEventListener(event, listener);
    else if (value === true) found.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) found.setAttribute(key, value);
  }
  found.append(...children.filter((child) => child !== null && child !== undefined));
  return found;
}

function draw(name, attributes = {}, ...children) {
  const found = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  found.append(...children);
  return found;
}

function fill(id, ...children) {
  const section = document.getElementById(id);
  const kept = children.filter(Boolean);
  section.replaceChildren(...kept);
  section.hidden = !kept.length;
  return section;
}

export function showProblem(problem) {
  const rows = (problem.errors ?? []).map((row) =>
    make("li", {}, make("strong", {}, row.field), row.value === null || row.value === undefined ? "" : ` = ${row.value}`, `: ${row.reason}`, row.hint ? make("div", { class: "quiet" }, row.hint) : ""),
  );
  const section = fill("verdict", make("div", { class: "problem" }, rows.length ? make("ul", { class: "items" }, ...rows) : problem.detail));
  section.classList.remove("stale");
  for (const id of ["change", "figure", "rows", "step", "remarks"]) fill(id);
}

export function showAnswer(answer, { rough, apply }) {
  const { view } = answer;
  if (!view.word) return showScreen(answer);
  if (!view.rows) return showFiles(view, apply);
  const { question } = view;
  const section = fill(
    "verdict",
    make("p", {}, make("span", { class: `word ${view.result ?? ""}` }, view.word), " ", `${rough ? "≈ " : ""}${view.phrases.join(" · ")}`),
    make("p", { class: "quiet" }, `${question.task} `, make("strong", {}, question.name), ` ${question.where}`),
    make("ul", { class: "chips", "aria-label": "The plan" }, ...view.choices.map((words) => make("li", {}, words))),
    ...fileParts(view, apply),
  );
  section.classList.toggle("stale", rough);
  showChange(view, rough, apply);
  fill("figure", make("h2", {}, "Memory of a GPU"), barFigure(view));
  showRows(view);
  showStep(view);
  const lists = [["Assumed", view.assumed], ["Notes", view.notes]].filter(([, lines]) => lines.length);
  fill("remarks", ...lists.flatMap(([name, lines]) => [make("h2", {}, name), make("ul", { class: "items" }, ...lines.map((line) => make("li", {}, line)))]));
}

function fileParts(view, apply) {
  if (!view.mistakes) return [];
  const parts = [];
  if (view.doubt) parts.push(make("p", {}, view.doubt));
  if (view.common.length) parts.push(make("p", {}, "No card is named. On common ones:"), make("ul", { class: "items" }, ...view.common.map(([gpus, need, words]) => make("li", {}, make("strong", {}, gpus), ` ${need}: ${words} `, make("button", { type: "button", on: { click: () => apply({ gpus: gpus.replace("×", "x") }) } }, "Take")))));
  if (view.mistakes.length) {
    parts.push(make("h2", {}, `Mistakes (${view.mistakes.length})`));
    parts.push(make("ul", { class: "mistakes" }, ...view.mistakes.map((found) => make("li", { class: found.stops ? "problem" : "" }, make("strong", {}, found.where), `: ${found.says}`, make("div", {}, `cure: ${[found.cure, ...found.effects].join(" · ")} `, found.apply && Object.keys(found.apply).length ? make("button", { type: "button", on: { click: () => apply(found.apply) } }, "See it cured") : "")))));
    for (const line of view.more_mistakes) parts.push(make("p", { class: "quiet" }, line));
  } else parts.push(make("p", {}, "No known mistake found."));
  parts.push(make("details", {}, make("summary", {}, "All that the files say"), make("pre", { tabindex: "0" }, view.screen)));
  return parts;
}

function showFiles(view, apply) {
  fill("verdict", make("p", {}, make("span", { class: `word ${view.result}` }, view.word), " ", view.phrases.join(" · ")), ...fileParts(view, apply)).classList.remove("stale");
  for (const id of ["change", "figure", "rows", "step", "remarks"]) fill(id);
}

export function showScreen(answer, button = null) {
  fill("verdict", make("pre", { tabindex: "0" }, answer.view.screen ?? ""), button).classList.remove("stale");
  for (const id of ["change", "figure", "rows", "step", "remarks"]) fill(id);
}

function showChange(view, rough, apply) {
  if (rough) return;
  const parts = [];
  const { change } = view;
  if (change) {
    parts.push(make("h2", {}, change.title));
    parts.push(make("ul", {}, ...change.rows.map(([words, steps, needs]) => make("li", {}, make("strong", {}, words), ` ${steps} `, make("span", { class: "quiet" }, needs)))));
    parts.push(make("p", {}, change.after));
    parts.push(make("button", { type: "button", class: "apply", on: { click: () => apply(change.apply) } }, change.rows.length > 1 ? "Apply these changes" : "Apply this change"));
  }
  if (view.ways.length) {
    parts.push(make("h2", {}, "What would make it fit, each accounted"));
    parts.push(make("ul", {}, ...view.ways.map((way) => make("li", {}, make("button", { type: "button", on: { click: () => apply(way.apply) } }, "Apply"), make("strong", {}, way.words), ` ${way.needs}`))));
  }
  for (const other of view.others) {
    parts.push(make("p", {}, make("button", { type: "button", on: { click: () => apply({ engine: other.engine }) } }, `With ${other.engine}`), ` needs ${other.needs}: ${other.result.replaceAll("_", " ")}`));
  }
  for (const line of view.remarks) parts.push(make("p", {}, line));
  if (view.ladder.length) parts.push(ladderTable(view, apply));
  fill("change", ...parts);
}

function ladderTable(view, apply) {
  const again = view.ladder.some((step) => step.recomputed);
  const head = ["tokens", `${view.unit} a GPU`, "", ...(again ? ["every layer recomputed", ""] : [])];
  const rows = view.ladder.map((step) => {
    const more = again ? [step.recomputed?.size ?? "", step.recomputed?.words ?? ""] : [];
    const go = make("button", { type: "button", class: "row", on: { click: () => apply({ seq_len: String(step.seq_len) }) } }, step.seq_len.toLocaleString("en"));
    return make("tr", { class: `cell ${step.result ?? ""}` }, make("td", { class: "number" }, go), make("td", { class: "number" }, step.size), make("td", { class: "state" }, step.words), ...more.map((words) => make("td", {}, words)));
  });
  return make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Table by length" }, make("table", {}, make("caption", {}, "By the length of a sequence, as none was asked for"), make("thead", {}, make("tr", {}, ...head.map((words) => (words ? make("th", { scope: "col" }, words) : make("td", {}))))), make("tbody", {}, ...rows)));
}

function widthOfFigures() {
  return Math.max(300, Math.min(900, document.querySelector(".answer").clientWidth));
}

function barFigure(view) {
  const width = widthOfFigures(), left = Math.min(190, width * 0.42), right = 12, tall = 34;
  const scale = Math.max(view.capacity_bytes ?? 0, ...view.bars.map((bar) => Math.max(bar.bytes, bar.high_bytes))) || 1;
  const at = (bytes) => left + ((width - left - right) * bytes) / scale;
  const height = view.bars.length * tall + 26;
  const title = view.bars.map((bar) => `${bar.label}: ${bar.total}${bar.range ? `, ${bar.range}` : ""}`).join("; ");
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}. ${view.capacity}` });
  view.bars.forEach((bar, row) => {
    const y = row * tall + 4;
    svg.append(draw("text", { x: left - 8, y: y + 17, "text-anchor": "end", class: "bar-label" }, `${bar.label} ${bar.total}`));
    let so_far = 0;
    for (const part of bar.parts) {
      const from = at(so_far);
      so_far += part.bytes;
      const rect = draw("rect", { x: from, y, width: Math.max(0, at(so_far) - from), height: 24, fill: COLOURS[part.component] ?? "#888", class: "bar-part" });
      rect.append(draw("title", {}, `${part.component.replaceAll("_", " ")} ${(part.bytes / GIB).toFixed(2)} GiB`));
      svg.append(rect);
    }
    const [low, high] = [at(bar.low_bytes), at(bar.high_bytes)];
    svg.append(draw("path", { d: `M${low} ${y + 8}v8M${low} ${y + 12}H${high}M${high} ${y + 8}v8`, class: "whisker" }));
  });
  if (view.capacity_bytes) {
    const x = at(view.capacity_bytes), bottom = view.bars.length * tall;
    svg.append(draw("path", { d: `M${x} 0V${bottom}`, class: "bar-edge" }));
    svg.append(draw("text", { x: Math.min(x, width - 6), y: bottom + 16, "text-anchor": "end", class: "bar-quiet" }, view.capacity));
  }
  return make("figure", {}, svg);
}

function showRows(view) {
  const head = make("tr", {}, make("th", { scope: "col" }, `at the peak, in ${view.instant.replaceAll("_", " ")}`), make("th", { scope: "col", class: "number" }, view.unit), make("th", { scope: "col", class: "number" }, "share"), make("th", { scope: "col" }, "why"));
  const body = make("tbody");
  for (const row of view.rows) {
    const swatch = row.component ? make("span", { class: "swatch", "aria-hidden": "true" }) : null;
    if (swatch) swatch.style.background = COLOURS[row.component];
    const name = row.items.length ? opener(row, body) : row.name;
    const why = [row.words, row.range].filter(Boolean).join(", ");
    body.append(make("tr", { class: row.component ? "" : "total" }, make(row.component ? "td" : "th", row.component ? {} : { scope: "row" }, swatch, name), make("td", { class: "number" }, row.size), make("td", { class: "number" }, row.share), make("td", {}, why)));
  }
  fill("rows", make("h2", {}, "What takes the room"), make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Table of components" }, make("table", {}, make("caption", {}, "A row opens its items, each with its source"), make("thead", {}, head), body)));
}

function opener(row, body) {
  const button = make("button", { type: "button", class: "row", "aria-expanded": "false" }, row.name);
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    const line = button.closest("tr");
    if (open) return line.nextElementSibling.remove();
    const items = row.items.map((item) => make("li", {}, make("strong", {}, item.size), ` ${item.path} `, make("span", { class: "quiet" }, item.source)));
    if (row.more) items.push(make("li", { class: "quiet" }, `and ${row.more} more`));
    line.after(make("tr", { class: "opened" }, make("td", { colspan: "4" }, make("ul", { class: "items" }, ...items))));
  });
  return button;
}

function showStep(view) {
  const { instants } = view;
  const parts = [make("h2", {}, "Over the step")];
  if (instants.length > 1) {
    const width = widthOfFigures(), edge = width < 600 ? 34 : 60, height = width < 600 ? 134 : 120, top = Math.max(...instants.map((each) => each.bytes)) || 1;
    const x = (n) => edge + (n * (width - 2 * edge)) / (instants.length - 1), y = (bytes) => height - (width < 600 ? 44 : 30) - (65 * bytes) / top;
    const ends = { 0: edge < 60 ? "start" : "middle", [instants.length - 1]: edge < 60 ? "end" : "middle" };
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Allocated, in ${view.unit}: ${instants.map((each) => `${each.name} ${each.size}`).join(", ")}` });
    svg.append(draw("polyline", { points: instants.map((each, n) => `${x(n)},${y(each.bytes)}`).join(" "), class: "step-line" }));
    instants.forEach((each, n) => {
      svg.append(draw("circle", { cx: x(n), cy: y(each.bytes), r: 4, class: "step-dot" }));
      svg.append(draw("text", { x: x(n), y: y(each.bytes) - 8, "text-anchor": "middle", class: "bar-label" }, each.size));
      const low = width < 600 && n % 2 ? 0 : 12; // where there is little room every other name stands lower
      svg.append(draw("text", { x: x(n), y: height - 8 - (width < 600 ? low : 0), "text-anchor": ends[n] ?? "middle", class: "bar-quiet" }, each.name));
    });
    parts.push(make("figure", {}, svg));
  }
  parts.push(make("ul", { class: "items" }, ...view.sums.map((line) => make("li", {}, line))));
  fill("step", ...parts);
}

const labelOf = (value) => (Number.isFinite(Number(value)) ? Number(value).toLocaleString("en") : String(value));

export function gridTable(document, { current, go, label = "Lengths and batches", words }) {
  const { x, y, cells } = document;
  const caption = words ?? `Each cell: ${document.unit} a GPU, and whether that fits; ${x.words} across, ${y.words} down. A cell takes its plan over.`;
  const head = make("tr", {}, make("td", {}), ...x.values.map((value) => make("th", { scope: "col", class: "number" }, labelOf(value))));
  const rows = y.values.map((down, j) =>
    make("tr", {}, make("th", { scope: "row", class: "number" }, labelOf(down)), ...x.values.map((across, i) => {
      const cell = cells[j][i];
      const here = String(current[x.option]) === String(across) && String(current[y.option]) === String(down);
      const button = make("button", { type: "button", title: cell.reason || null, tabindex: i || j ? "-1" : "0", on: { click: () => go({ [x.option]: String(across), [y.option]: String(down) }) } }, make("span", {}, cell.size), " ", make("span", { class: "state" }, cell.words));
      return make("td", { class: `cell ${cell.result ?? ""}${here ? " current" : ""}` }, button);
    })),
  );
  const table = make("table", { role: "grid", "aria-label": label }, make("thead", {}, head), make("tbody", {}, ...rows));
  table.addEventListener("keydown", (event) => moveInGrid(table, event));
  return make("div", {}, make("p", { class: "quiet" }, caption), make("div", { class: "scroll" }, table));
}

function moveInGrid(table, event) {
  const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
  if (!steps) return;
  const cell = event.target.closest("td"), row = cell.parentElement;
  const rows = [...table.tBodies[0].rows], cells = [...row.cells];
  const next = rows[rows.indexOf(row) + steps[0]]?.cells[cells.indexOf(cell) + steps[1]]?.querySelector("button");
  if (!next) return;
  event.preventDefault();
  event.target.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}

export function save(name, text, type = "text/plain") {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export function csvOf(view) {
  const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;
  const rows = view.rows.flatMap((row) => [[row.name, "", row.size, row.share, row.words], ...row.items.map((item) => [row.name, item.path, item.bytes, "", item.source])]);
  return [["component", "path", `${view.unit} or bytes of a path`, "share", "why"], ...rows].map((cells) => cells.map(quoted).join(",")).join("\r\n");
}

export function pictureText() {
  const svg = document.querySelector("#figure svg")?.cloneNode(true);
  if (!svg) return "";
  svg.setAttribute("xmlns", SVG);
  const style = draw("style", {}, "text{font:13px sans-serif;fill:#1c1c1c}.bar-edge{stroke:#1c1c1c;stroke-width:2}.whisker{stroke:#1c1c1c;fill:none}.bar-part{stroke:#76767a;stroke-width:.75}");
  svg.prepend(style);
  return new XMLSerializer().serializeToString(svg);
}
