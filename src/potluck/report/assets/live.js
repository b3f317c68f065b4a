// The live page: asks for updates and passes them to the report's charts.
const EVERY = 2000, leftOut = new Set(), runRows = new Map(), groupRows = new Map(), lastParts = {};
let version = -1, asking = false;

function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}
function bytes(count) {
  const [divisor, unit] = byteUnit([count]);
  return `${spaced(count / divisor, 1)} ${unit}`;
}

function runRow(run) {
  const box = element("input", { type: "checkbox", "aria-label": `Show ${run.name} in the charts` });
  box.checked = true;
  box.addEventListener("change", () => { if (box.checked) leftOut.delete(run.name); else leftOut.add(run.name); ask(); });
  const bar = element("progress", { max: "1", "aria-label": `Progress of ${run.name}` });
  const parts = { state: element("td"), words: element("span"), bar, left: element("td"), accuracy: element("td"), failed: element("td"), sent: element("td") };
  const row = element("tr", {}, element("th", { scope: "row" }, run.name), parts.state, element("td", { class: "going" }, bar, parts.words), parts.left, parts.accuracy, parts.failed, parts.sent, element("td", {}, box));
  return { row, parts };
}

// A heading above the runs of one experiment.
function groupRow(title) {
  if (!groupRows.has(title)) groupRows.set(title, element("tr", { class: "experiment" }, element("th", { scope: "rowgroup", colspan: "8" }, title)));
  return groupRows.get(title);
}
const clock = (seconds) => new Date(1000 * seconds).toLocaleString("sv", { month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" });

function updateRun(run) {
  if (!runRows.has(run.name)) runRows.set(run.name, runRow(run));
  const { row, parts } = runRows.get(run.name), { within } = run;
  const part = within && within.phase === "training" && within.of ? Math.min(1, within.arrived / within.of) : 0;
  const share = run.rounds ? Math.min(1, (run.round + (run.round < run.rounds ? part : 0)) / run.rounds) : 0;
  parts.state.textContent = run.waiting ? "running, waits" : run.status === "running" && run.age > 60 ? `running, silent for ${span(run.age)}` : run.status;
  parts.state.className = `state ${run.status}`;
  parts.bar.value = share;
  parts.words.textContent = `${run.round} of ${run.rounds || "?"}` + (within && run.round < run.rounds ? `, ${within.phase} ${Math.min(within.arrived, within.of)}/${within.of}` : "");
  parts.left.textContent = run.status === "running" ? span(run.left) : "";
  parts.accuracy.textContent = run.accuracy === null ? "–" : percent(run.accuracy);
  parts.failed.textContent = spaced(run.failed);
  parts.sent.textContent = bytes(run.sent);
  return row;
}

function updateNodes(runs) {
  const machines = runs.flatMap((run) => run.nodes.map((node) => [node.name, run.name, node.architecture, node.connected, node.seen === null ? "never" : `${span(node.seen)} ago`, node.answered, node.failed, node.trouble || "–"]));
  const place = byId("live-nodes");
  if (!machines.length) return place.replaceChildren();
  const head = ["node", "run", "model", "connected", "last seen", "answered", "failed", "last trouble"];
  return place.replaceChildren(element("h3", {}, "Nodes"), element("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Nodes" }, numberTable({ head, rows: machines })));
}

function updateRuns(runs) {
  const body = byId("live-runs").tBodies[0], grouped = new Set(runs.map((run) => run.experiment)).size > 1;
  const rows = runs.flatMap((run, at) => (grouped && runs[at - 1]?.experiment !== run.experiment ? [groupRow(run.experiment), updateRun(run)] : [updateRun(run)]));
  if (rows.length !== body.rows.length || rows.some((row, at) => row !== body.rows[at])) body.replaceChildren(...rows);
  const counts = Map.groupBy ? [...Map.groupBy(runs, (run) => run.status)].map(([status, some]) => `${some.length} ${status}`) : [`${runs.length} runs`];
  byId("live-status").textContent = runs.length ? `${counts.join(", ")}.` : "No run yet; the page shows them as they begin.";
  updateNodes(runs);
  const events = runs.flatMap((run) => run.events.map((event) => ({ ...event, run: run.name }))).sort((a, b) => b.time - a.time).slice(0, 40);
  const log = [...runs.filter((run) => run.error || run.waiting).map((run) => `${run.name}: ${run.error || run.waiting}`), ...events.map((event) => `${clock(event.time)}  ${event.run}  ${event.text}`)];
  const shownLog = byId("live-log").querySelector("pre"), text = log.join("\n");
  if (shownLog.textContent !== text) shownLog.textContent = text;
}

function updateReport(report) {
  if (!report.data) return;
  version = report.version;
  const many = data.groups.length > 8;
  data = report.data;
  for (const [name, html] of Object.entries(report.parts)) {
    const place = byId(name === "toggles" ? "method-toggles" : `part-${name}`);
    if (place && lastParts[name] !== html) place.innerHTML = html; // escaped where it was made
    lastParts[name] = html;
  }
  if (!many && data.groups.length > 8) { curveView.value = "apart"; view.value = "map"; }
  readers.forEach((read) => read());
  layOutMethods();
  paintSwatches();
  redraw();
}

async function ask() {
  if (asking) return;
  asking = true;
  try {
    const question = new URLSearchParams([["since", version], ...[...leftOut].map((name) => ["without", name])]);
    const answer = await fetch(`state?${question}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    const state = await answer.json();
    updateRuns(state.runs);
    updateReport(state.report);
    document.documentElement.dataset.live = String(version);
  } catch {
    byId("live-status").textContent = "potluck watch has ended; this is the last state.";
  } finally {
    asking = false;
  }
}
setInterval(() => { if (!document.hidden) ask(); }, EVERY);
document.addEventListener("visibilitychange", ask);
setTimeout(ask, 0);
