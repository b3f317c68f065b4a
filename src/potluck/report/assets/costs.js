// What it costs: to a target accuracy, in traffic, and in failures and stale answers.
const COSTS = { rounds: "rounds", bytes: "bytes sent", seconds: "time", virtual_seconds: "simulated time", flops: "FLOPs of training" };
const goal = byId("target-value"), currency = byId("target-cost");
const paidIn = Object.keys(COSTS).filter((name) => data.groups.some((group) => group.targets.some((run) => run[name] && run[name].some(Number.isFinite))));
fillSelect(currency, paidIn.map((name) => [name, COSTS[name]]));
goal.value = Math.round(100 * (data.target || 0.5));

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
const sizeTo = (name, lines) => { byId(`chart-${name}`).style.height = `${Math.max(150, 78 + 46 * lines)}px`; };

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
    traces: [bars(got.map((cost) => cost.group), values, `%{text} ${unit}`, got.map((cost) => colourOf(cost.group)), { text: words, textposition: "auto" })],
    layout: layout(axis(unit, { rangemode: "tozero", fixedrange: true }), methodAxis(got.map((cost) => cost.group)), { bargap: 0.35 }),
    caption, table: { head: ["method", unit], rows: got.map((cost, at) => [cost.group.label, words[at]]) },
  };
});

const unitOf = byId("traffic-unit"), logarithmic = byId("traffic-log");
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

chart("failures", () => {
  const groups = shown().filter((group) => group.failures.rounds.length);
  const words = groups.map((group) => {
    const total = group.failures.kinds.reduce((sum, [, count]) => sum + count, 0);
    return `${group.label}: ${spaced(total)} of ${spaced(group.failures.jobs)} jobs failed (${group.failures.kinds.map(([kind, count]) => `${kind} ${count}`).join(", ")}).`;
  });
  const totals = groups.flatMap((group) => group.failures.rounds.map(([, count]) => count));
  const traces = groups.map((group) => ({
    type: "bar", name: plain(group.label), x: group.failures.rounds.map(([round]) => round), y: group.failures.rounds.map(([, count]) => count),
    marker: bar(group), hovertemplate: "%{fullData.name}, round %{x}<br><b>%{y}</b> failed<extra></extra>",
  }));
  return {
    traces, layout: layout(axis("round"), axis("failed jobs", wholeNumbers(totals)), { barmode: "stack" }),
    caption: words.length ? words.join(" ") : "No job failed.",
    table: { head: ["round", "method", "failed"], rows: groups.flatMap((group) => group.failures.rounds.map(([round, count]) => [round, group.label, count])) },
  };
});

chart("staleness", () => {
  const groups = shown().filter((group) => group.staleness.some(([steps]) => steps > 0));
  const shares = groups.map((group) => {
    const total = group.staleness.reduce((sum, [, count]) => sum + count, 0);
    return group.staleness.map(([steps, count]) => [steps, count / total]);
  });
  const traces = groups.map((group, at) => ({
    type: "bar", name: plain(group.label), x: shares[at].map(([steps]) => steps), y: shares[at].map(([, share]) => share), marker: bar(group),
    hovertemplate: "%{fullData.name}<br>%{x} steps stale: <b>%{y:.1%}</b><extra></extra>",
  }));
  return {
    traces, layout: layout(axis("server steps since the client was asked"), axis("share of answers", { tickformat: ".0%", rangemode: "tozero" }), { barmode: "group" }),
    caption: groups.length ? "Staleness of the answers of asynchronous runs." : "Every answer was fresh: the server had not moved on since its client was asked.",
    table: { head: ["steps", "method", "share"], rows: groups.flatMap((group, at) => shares[at].map(([steps, share]) => [steps, group.label, percent(share, 1)])) },
  };
});
