// What it costs: to a target accuracy, in traffic; and what it brings, over another method and for what is sent.
const COSTS = { rounds: "rounds", bytes: "bytes sent", seconds: "time", virtual_seconds: "simulated time", flops: "FLOPs of training" };
const goal = byId("target-value"), currency = byId("target-cost");
const goalOf = () => Math.round(100 * (data.target || 0.5));
let proposed = null;
onData(() => {
  const paidIn = Object.keys(COSTS).filter((name) => data.groups.some((group) => group.targets.some((run) => run[name] && run[name].some(Number.isFinite))));
  fillSelect(currency, paidIn.map((name) => [name, COSTS[name]]));
  if (proposed === null || Number(goal.value) === proposed) goal.value = proposed = goalOf(); // what a reader typed stays
});

// As potluck.analysis.targets: the first raw evaluation that reaches the target; the mean over seeds that do.
function costOf(group, target, name) {
  const firsts = group.targets.map((run) => {
    const at = run.accuracy.findIndex((value) => value !== null && value >= target - 1e-12);
    return at < 0 || !run[name] ? null : run[name][at];
  });
  const reached = firsts.filter(Number.isFinite);
  return { reached: reached.length, of: firsts.length, mean: reached.length ? reached.reduce((a, b) => a + b, 0) / reached.length : null };
}

function bars(groups, values, template, colour, more = {}) {
  return {
    type: "bar", orientation: "h", y: groups.map((_, at) => at), x: values, marker: { color: colour }, customdata: groups.map((group) => plain(group.label)),
    hovertemplate: `%{customdata}<br><b>${template}</b><extra></extra>`, ...more,
  };
}
const methodAxis = (groups) => axis("", {
  tickvals: groups.map((_, at) => at), ticktext: groups.map((group) => short(group.label)), ticksuffix: " ",
  range: [groups.length - 0.5, -0.5], fixedrange: true, showgrid: false, zeroline: false,
});
const sizeTo = (name, lines) => { byId(`chart-${name}`).style.height = `${Math.max(150, 78 + (lines > 10 ? 26 : 46) * lines)}px`; };

chart("target", () => {
  const target = Number(goal.value) / 100, name = currency.value;
  const costs = shown().map((group) => ({ group, ...costOf(group, target, name) }));
  const got = costs.filter((cost) => cost.mean !== null);
  const missed = costs.filter((cost) => cost.reached < cost.of).map((cost) => cost.of > 1 ? `${cost.group.label} reached it with ${cost.reached} of ${cost.of} seeds.` : `${cost.group.label} did not reach it.`);
  const caption = [got.length ? `Spent by all clients when the mean accuracy first reached ${goal.value} %.` : `No shown method reached ${goal.value} %.`, ...missed].join(" ");
  if (!got.length) return { traces: [], caption };
  const [divisor, unit] = name === "bytes" ? byteUnit(got.map((cost) => cost.mean)) : name.endsWith("seconds") ? timeUnit(got.map((cost) => cost.mean)) : [1, COSTS[name]];
  sizeTo("target", got.length);
  const values = got.map((cost) => cost.mean / divisor);
  const words = values.map((value) => (name === "flops" ? value.toExponential(2) : spaced(value, value < 10 ? 2 : 1)));
  return {
    traces: [bars(got.map((cost) => cost.group), values, `%{text} ${unit}`, got.map((cost) => colourOf(cost.group)), { text: words, textposition: "auto", textangle: 0, constraintext: "none" })],
    layout: layout(axis(unit, { rangemode: "tozero", fixedrange: true }), methodAxis(got.map((cost) => cost.group)), { bargap: 0.35 }),
    caption, table: { head: ["method", unit], rows: got.map((cost, at) => [cost.group.label, words[at]]) },
  };
});

const unitOf = byId("traffic-unit"), logarithmic = byId("traffic-log");
onData(() => { // what is a hundredth of another would not be seen beside it
  const sent = data.groups.flatMap((group) => group.traffic.floats).filter((value) => value > 0);
  if (!logarithmic.dataset.touched) logarithmic.checked = Math.max(0, ...sent) > 100 * Math.min(Infinity, ...sent);
});
logarithmic.addEventListener("input", () => { logarithmic.dataset.touched = "yes"; });
chart("traffic", () => {
  const groups = shown(), name = unitOf.value;
  if (!groups.length) return { traces: [], caption: "Nothing to show: choose a method above." };
  const all = groups.flatMap((group) => group.traffic[name]);
  const [divisor, unit] = name === "floats" ? [1, "numbers"] : byteUnit(all);
  sizeTo("traffic", groups.length + 0.6);
  const titles = { floats: "numbers per client and round", bytes: `${unit} per client and round`, total: `${unit}, all clients and rounds` };
  const side = (at, word, colour, pattern) => bars(groups, groups.map((group) => group.traffic[name][at] / divisor), `%{x:,.4~g} ${unit} ${word}`, colour, { name: word, marker: { color: colour, pattern: { shape: pattern, size: 7, solidity: 0.18, fgcolor: css("--panel"), fillmode: "overlay" } } });
  return {
    traces: [side(0, "up", css("--up"), ""), side(1, "down", css("--down"), "/")],
    layout: layout(axis(titles[name], { type: logarithmic.checked ? "log" : "linear", fixedrange: true }), methodAxis(groups),
      { barmode: "group", bargap: 0.3, showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", itemclick: false, itemdoubleclick: false } }),
    caption: "Up is from client to server. Counted from the messages themselves.",
    table: null,
  };
});

// Differences to a method of choice: how far each lies above it, and how its clients spread.
const gainBase = byId("gain-reference");
onData(() => fillSelect(gainBase, data.groups.map((group, position) => [position, group.label]), data.reference));
chart("gains", () => {
  const base = data.groups[Number(gainBase.value)], compared = gainsOver(base);
  if (!compared.length) return { traces: [], caption: data.groups.length < 2 ? "There is nothing to compare: the report is of one method." : "No other shown method was run with the same clients and seed." };
  const middle = (rows, share) => 100 * rows[Math.min(rows.length - 1, Math.round(share * (rows.length - 1)))].gain;
  const lines = compared.map(([group, rows]) => ({ group, mean: 100 * rows.reduce((sum, row) => sum + row.gain, 0) / rows.length, low: middle(rows, 0.25), high: middle(rows, 0.75), better: rows.filter((row) => row.gain > 1e-9).length, of: rows.length }));
  if (!order.length) lines.sort((a, b) => b.mean - a.mean);
  sizeTo("gains", lines.length);
  const least = Math.min(0, ...lines.map(({ low, mean }) => Math.min(low, mean))), most = Math.max(0, ...lines.map(({ high, mean }) => Math.max(high, mean))), pad = 0.04 * (most - least || 1);
  const groups = lines.map(({ group }) => group), whiskers = lines.flatMap(({ low, high }, at) => [[low, at], [high, at], [null, null]]);
  return {
    traces: [
      { type: "scatter", mode: "lines", x: whiskers.map(([x]) => x), y: whiskers.map(([, y]) => y), line: { color: css("--line"), width: 7 }, hoverinfo: "skip" },
      { type: "scatter", mode: "markers", x: lines.map(({ mean }) => mean), y: lines.map((_, at) => at), marker: { color: groups.map(colourOf), symbol: groups.map((group) => group.symbol), size: 11 },
        customdata: lines.map(({ group, better, of }) => [plain(group.label), better, of]), hovertemplate: "%{customdata[0]}<br><b>%{x:+.2f} points</b>, better for %{customdata[1]} of %{customdata[2]} clients<extra></extra>" },
    ],
    layout: layout(axis(`points above ${short(base.label)}`, { zeroline: true, zerolinewidth: 2, zerolinecolor: css("--quiet"), fixedrange: true, range: [least - pad, most + pad] }), methodAxis(groups)),
    caption: `Mean over clients of the final accuracy less that under ${base.label}; the grey bar spans the middle half of the clients. It is no test: the table has one.`,
    table: { head: ["method", "mean", "lower quarter", "upper quarter", "better off"], rows: lines.map(({ group, mean, low, high, better, of }) => [group.label, mean.toFixed(2), low.toFixed(2), high.toFixed(2), `${better} of ${of}`]) },
  };
});

// Accuracy against what was sent: who is beaten by nobody in both.
const silentOne = (group) => group.traffic.floats[0] + group.traffic.floats[1] === 0; // an empty envelope is no traffic
chart("pareto", () => {
  const points = shown().filter((group) => group.accuracy !== null).map((group) => ({ group, sent: silentOne(group) ? 0 : group.traffic.total[0] + group.traffic.total[1] }));
  const sending = points.filter(({ sent }) => sent > 0).sort((a, b) => a.sent - b.sent), silent = points.filter(({ sent }) => !sent);
  if (!sending.length) return { traces: [], caption: points.length ? "No shown method sends anything." : "Nothing to show: choose a method above." };
  const floor = Math.max(-1, ...silent.map(({ group }) => group.accuracy));
  const front = [];
  sending.forEach((point) => { if (point.group.accuracy > (front.at(-1)?.group.accuracy ?? floor)) front.push(point); });
  const [divisor, unit] = byteUnit(sending.map(({ sent }) => sent)), few = sending.length <= 6 && window.innerWidth >= 600;
  const named = sending.map((point) => (few || front.includes(point) ? short(point.group.label) : ""));
  const dots = {
    type: "scatter", mode: "markers+text", x: sending.map(({ sent }) => sent / divisor), y: sending.map(({ group }) => group.accuracy), text: named, textposition: sending.map((point) => (front.includes(point) ? "top left" : "bottom right")),
    textfont: { color: css("--text"), size: 12 }, cliponaxis: false, customdata: sending.map(({ group }) => plain(group.label)), marker: { color: sending.map(({ group }) => colourOf(group)), symbol: sending.map(({ group }) => group.symbol), size: 11 },
    hovertemplate: `%{customdata}<br><b>%{y:.2%}</b> for %{x:,.3~g} ${unit}<extra></extra>`,
  };
  const steps = front.flatMap((point, at) => (at ? [[point.sent, front[at - 1].group.accuracy], [point.sent, point.group.accuracy]] : [[point.sent, point.group.accuracy]]));
  const line = { type: "scatter", mode: "lines", x: steps.map(([sent]) => sent / divisor), y: steps.map(([, accuracy]) => accuracy), line: { color: css("--quiet"), width: 1.5, dash: "dot" }, hoverinfo: "skip" };
  const shapes = silent.map(({ group }) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: group.accuracy, y1: group.accuracy, line: { color: colourOf(group), width: 1.5, dash: "dash" } }));
  return {
    traces: [line, dots], layout: layout(axis(window.innerWidth < 600 ? `traffic (${unit}, logarithmic)` : `traffic of all clients, up and down (${unit}, logarithmic)`, { type: "log", fixedrange: true }), axis("final accuracy", { tickformat: ".1%" }), { shapes }),
    caption: `On the dotted front, beaten by nobody in both: ${front.map(({ group }) => group.label).join(", ") || "nobody"}.` + silent.map(({ group }) => ` ${group.label} sends nothing and reaches ${percent(group.accuracy)} (dashed).`).join(""),
    table: { head: ["method", `sent (${unit})`, "accuracy", "on the front"], rows: sending.map((point) => [point.group.label, spaced(point.sent / divisor, 3), percent(point.group.accuracy), front.includes(point) ? "yes" : ""]) },
  };
});
