// Results by client: sorted, as differences to a chosen method, as heat maps; means per architecture; samples.
const view = byId("client-view"), against = byId("client-reference"), methodSelect = byId("client-method");
onData(() => {
  const choices = data.groups.map((group, position) => [position, group.label]);
  fillSelect(against, choices, data.reference);
  fillSelect(methodSelect, choices);
  const names = [...new Set(data.groups.flatMap((group) => Object.keys(group.notes)))], chosen = view.value;
  [...view.options].filter((option) => option.value.startsWith("notes:")).forEach((option) => option.remove());
  view.append(...names.map((name) => element("option", { value: `notes:${name}` }, `note: ${name}`)));
  if ([...view.options].some((option) => option.value === chosen)) view.value = chosen;
  [...view.options].forEach((option) => { option.hidden = data.groups.length < 2 && ["difference", "map"].includes(option.value); });
});
if (data.groups.length > 8) view.value = "map";
view.addEventListener("input", () => { // select a method that has the note
  const name = view.value.startsWith("notes:") && view.value.slice("notes:".length), notes = (group) => group && group.notes[name];
  if (name && !notes(data.groups[Number(methodSelect.value)])) methodSelect.value = String(data.groups.findIndex(notes));
});

// Every client of every seed; equal `pair` means the same client with the same samples.
function rowsOf(group) {
  return group.clients.flatMap(({ roster, seed, accuracy }) => {
    const who = data.rosters[roster];
    return accuracy.map((value, at) => ({
      accuracy: value, seed, pair: `${who.partition}:${who.index[at]}`, name: who.name[at], architecture: who.architecture[at], train: who.train[at],
    }));
  });
}

function describe(row, seeds) {
  const parts = [plain(row.name), plain(row.architecture), row.train === null ? "" : `${spaced(row.train)} training samples`, seeds > 1 ? `seed ${row.seed}` : ""];
  return parts.filter(Boolean).join(" · ");
}

function strip(group, rows, value, template) {
  const colour = colourOf(group);
  return {
    x: rows.map((_, at) => (rows.length > 1 ? at / (rows.length - 1) : 0.5)), y: rows.map(value), type: "scatter", mode: "lines+markers",
    name: plain(group.label), text: rows.map((row) => describe(row, group.seeds.length)),
    line: { color: faded(colour, 0.35), width: 1.5, dash: group.dash }, marker: { color: colour, symbol: group.symbol, size: rows.length > 60 ? 5 : 8 },
    hovertemplate: `%{fullData.name}<br>%{text}<br><b>${template}</b><extra></extra>`,
  };
}

function sortedFigure() {
  const groups = shown().filter((group) => group.clients.some(({ accuracy }) => accuracy.length));
  const sorted = groups.map((group) => [group, rowsOf(group).sort((a, b) => a.accuracy - b.accuracy)]);
  return {
    traces: sorted.map(([group, rows]) => strip(group, rows, (row) => row.accuracy, "%{y:.2%}")),
    layout: layout(axis("clients, from worst to best", { tickformat: ".0%", range: [-0.02, 1.02] }), axis("final accuracy", { tickformat: ".0%" })),
    caption: groups.length ? "Every point is one client's own final accuracy." : "No client has been tested yet.",
    table: { head: ["client", "method", "architecture", "accuracy"], rows: sorted.flatMap(([group, rows]) => rows.map((row) => [row.name, group.label, row.architecture, percent(row.accuracy)])) },
  };
}

// Shown methods other than `base` with their clients' gains over it, each from the greatest loss to the greatest gain.
function gainsOver(base) {
  if (!base) return [];
  const known = new Map(rowsOf(base).map((row) => [row.pair, row.accuracy]));
  return shown().filter((group) => group !== base).map((group) => [
    group, rowsOf(group).filter((row) => known.has(row.pair)).map((row) => ({ ...row, gain: row.accuracy - known.get(row.pair) })).sort((a, b) => a.gain - b.gain),
  ]).filter(([, rows]) => rows.length);
}

function differenceFigure() {
  const base = data.groups[Number(against.value)] || { label: "" }, compared = gainsOver(base.clients && base);
  const better = compared.map(([group, rows]) => {
    const count = rows.filter((row) => row.gain > 1e-9).length;
    return `${group.label} is better for ${percent(count / rows.length, 0)} of the clients (${count} of ${rows.length}).`;
  });
  return {
    traces: compared.map(([group, rows]) => strip(group, rows, (row) => 100 * row.gain, "%{y:+.2f} points")),
    layout: layout(axis("clients, from greatest loss to greatest gain", { tickformat: ".0%", range: [-0.02, 1.02] }),
      axis(`points above ${short(base.label)}`, { zeroline: true, zerolinewidth: 2, zerolinecolor: css("--quiet") })),
    caption: better.length ? better.join(" ") : "No other shown method was run with the same clients and seed.",
    table: { head: ["client", "method", "architecture", "points"], rows: compared.flatMap(([group, rows]) => rows.map((row) => [row.name, group.label, row.architecture, (100 * row.gain).toFixed(2)])) },
  };
}

function mapFigure() {
  const groups = shown(), rows = groups.map((group) => new Map(rowsOf(group).map((row) => [row.pair, row])));
  const all = new Map(rows.flatMap((known) => [...known]));
  if (!all.size) return { traces: [], caption: groups.length ? "No client has been tested yet." : "Nothing to show: choose a method above." };
  const mean = (pair) => { const found = rows.map((known) => known.get(pair)).filter(Boolean); return found.reduce((sum, row) => sum + row.accuracy, 0) / found.length; };
  const means = new Map([...all.keys()].map((pair) => [pair, mean(pair)]));
  const pairs = [...all.keys()].sort((a, b) => means.get(a) - means.get(b));
  const values = rows.map((known) => pairs.map((pair) => known.get(pair)?.accuracy ?? null));
  return {
    made: heat({
      rows: groups.map((group) => group.label), columns: pairs.map((pair) => all.get(pair).name), values, corner: "method, client", show: (value) => (100 * value).toFixed(0), title: "Accuracy of every client under every method, in %",
      tell: (at, column) => `${groups[at].label}, ${all.get(pairs[column]).name} (${all.get(pairs[column]).architecture})`,
    }),
    caption: "Final accuracy in %, clients from the hardest to the easiest: a client that is dark under every method is hard.",
    table: { head: ["method", ...pairs.slice(0, 200).map((pair) => all.get(pair).name)], rows: groups.map((group, at) => [group.label, ...values[at].slice(0, 200).map((value) => (value === null ? null : percent(value, 1)))]) },
  };
}

function historyFigure() {
  const group = data.groups[Number(methodSelect.value)], history = group && group.history;
  if (!history) return { traces: [], caption: "No client has been tested yet." };
  const names = new Map(rowsOf(group).map((row) => [row.pair.split(":")[1], row.name]));
  return {
    made: heat({
      rows: history.clients.map((client) => names.get(String(client)) || `client ${client}`), columns: history.rounds.map(String), values: history.values, show: (value) => `${value}`, corner: "client, round", title: `Accuracy of ${group.label}'s clients over rounds, in %`,
      tell: (at, column) => `${names.get(String(history.clients[at])) || history.clients[at]}, round ${history.rounds[column]}`,
    }),
    caption: `Accuracy in % of ${group.label}'s clients (rows) in the rounds in which they were tested (columns), ${history.rounds[0]} to ${history.rounds.at(-1)}.`
      + (history.left_out ? ` ${spaced(history.left_out)} further clients are left out.` : "") + (group.seeds.length > 1 ? ` Seed ${group.seeds[0]}.` : ""),
    table: null,
  };
}

// A line per client of a note of the method, such as pFedAFM's mean mixing weight.
function notesFigure(name) {
  const group = data.groups[Number(methodSelect.value)], note = group && group.notes[name];
  if (!note) return { traces: [], caption: group ? `${group.label} has no note ${name} of its clients.` : "No client has been tested yet." };
  const names = new Map(rowsOf(group).map((row) => [row.pair.split(":")[1], row.name]));
  const nameOf = (client) => names.get(String(client)) || `client ${client}`;
  const rounds = [...new Set(note.lines.flatMap((line) => line.rounds))].sort((a, b) => a - b).slice(-200);
  const values = note.lines.map((line) => new Map(line.rounds.map((round, at) => [round, line.values[at]])));
  return {
    traces: note.lines.map((line, at) => ({
      x: line.rounds, y: line.values, type: "scatter", mode: line.rounds.length > 1 ? "lines" : "markers", name: plain(nameOf(line.client)),
      line: { color: `hsl(${Math.round(360 * at / note.lines.length)},65%,${isDark() ? 65 : 40}%)`, width: 2, dash: ["solid", "dash", "dot"][at % 3] },
      hovertemplate: "%{fullData.name}<br>round %{x}: <b>%{y:.4f}</b><extra></extra>",
    })),
    layout: layout(axis("round", wholeNumbers(note.lines.map((line) => line.rounds.at(-1)))), axis(plain(name))),
    caption: `${name} as noted by ${group.label}, a line per client.` + (note.left_out ? ` ${spaced(note.left_out)} further clients are left out.` : "")
      + (group.seeds.length > 1 ? ` Seed ${group.seeds[0]}.` : ""),
    table: { head: ["client", ...rounds.map((round) => `round ${round}`)], rows: note.lines.map((line, at) => [nameOf(line.client), ...rounds.map((round) => values[at].get(round)?.toFixed(4) ?? null)]) },
  };
}

chart("clients", () => {
  const notes = view.value.startsWith("notes:");
  byId("client-reference-label").hidden = view.value !== "difference";
  byId("client-method-label").hidden = !(notes || view.value === "history") || data.groups.length < 2;
  if (notes) return notesFigure(view.value.slice("notes:".length));
  return { accuracy: sortedFigure, difference: differenceFigure, map: mapFigure, history: historyFigure }[view.value]();
});

const architectureView = byId("architecture-view");
if (data.groups.length > 4) architectureView.value = "map";
chart("architectures", () => {
  const groups = shown().filter((group) => group.architectures.length);
  const caption = groups.length ? "Mean over the clients of an architecture" : "The runs do not tell the clients' architectures.";
  const table = { head: ["architecture", "method", "accuracy", "± clients", "clients"], rows: groups.flatMap((group) => group.architectures.map(([name, mean, std, clients]) => [name, group.label, percent(mean), percent(std), clients])) };
  if (groups.length && architectureView.value !== "bars") {
    const names = [...new Set(groups.flatMap((group) => group.architectures.map(([name]) => name)))].sort();
    const mean = (group, name) => group.architectures.find(([other]) => other === name)?.[1] ?? null;
    const base = data.groups[data.reference], signed = architectureView.value === "difference";
    const value = (group, name) => (signed ? (mean(group, name) === null || mean(base, name) === null ? null : mean(group, name) - mean(base, name)) : mean(group, name));
    const show = (one) => (signed ? `${one > 0 ? "+" : ""}${(100 * one).toFixed(1)}` : (100 * one).toFixed(1));
    return { made: heat({ rows: groups.map((group) => group.label), columns: names, values: groups.map((group) => names.map((name) => value(group, name))), show, signed, title: "Accuracy by method and architecture, in %" }),
      caption: `${caption}, ${signed ? `in points above ${base.label}` : "in %"}.`, table };
  }
  const traces = groups.map((group) => ({
    type: "bar", name: plain(group.label), x: group.architectures.map(([name]) => plain(name)), y: group.architectures.map(([, mean]) => mean),
    error_y: { type: "data", array: group.architectures.map(([, , std]) => std), color: css("--quiet"), thickness: 1.2, width: 3 },
    customdata: group.architectures.map(([, , std, clients]) => [percent(std), clients]), marker: bar(group),
    hovertemplate: "%{fullData.name}, %{x}<br><b>%{y:.2%}</b> ± %{customdata[0]}, %{customdata[1]} clients<extra></extra>",
  }));
  return {
    traces, layout: layout(axis("", { type: "category", fixedrange: true, tickangle: window.innerWidth < 600 ? -90 : "auto" }), axis("mean final accuracy", { tickformat: ".0%", rangemode: "tozero" }), { barmode: "group", bargap: 0.25 }),
    caption: groups.length ? `${caption}; the whisker is one standard deviation.` : caption, table,
  };
});

const partition = byId("sample-partition");
onData(() => {
  fillSelect(partition, data.partitions.map((each, position) => [position, each.label]));
  partition.closest(".controls").hidden = data.partitions.length < 2;
});
const drawSamples = chart("samples", () => {
  const chosen = data.partitions[Number(partition.value)];
  if (!chosen) return { traces: [], caption: "The runs did not record how many samples of each class their clients hold." };
  const cells = chosen.counts.flatMap((row, client) => row.map((count, label) => ({ count, client, label }))).filter((cell) => cell.count > 0);
  const plot = byId("chart-samples");
  const wide = Math.max(200, plot.clientWidth - 80) / chosen.counts.length, high = 260 / chosen.counts[0].length;
  const greatest = Math.max(...cells.map((cell) => cell.count)), diameter = Math.max(5, Math.min(34, wide, 1.5 * high));
  return {
    traces: [{
      type: "scatter", mode: "markers", x: cells.map((cell) => cell.client), y: cells.map((cell) => cell.label), text: cells.map((cell) => `${plain(chosen.names[cell.client])}, class ${plain(chosen.class_names[cell.label])}`),
      marker: { size: cells.map((cell) => Math.max(2, diameter * Math.sqrt(cell.count / greatest))), color: css("--up"), opacity: 0.75, line: { width: 0 } },
      customdata: cells.map((cell) => spaced(cell.count)), hovertemplate: "%{text}<br><b>%{customdata}</b> training samples<extra></extra>",
    }],
    layout: layout(axis("client", { range: [-0.7, chosen.counts.length - 0.3], zeroline: false, dtick: chosen.counts.length <= 20 ? 1 : undefined }), axis("class", { range: [-0.7, chosen.counts[0].length - 0.3], zeroline: false, ...(chosen.counts[0].length <= 12 ? { tickvals: chosen.class_names.map((_, label) => label), ticktext: chosen.class_names.map(plain) } : {}) })),
    caption: `The area of a bubble is the number of samples; the largest has ${spaced(greatest)}.` + (chosen.left_out ? ` ${spaced(chosen.left_out)} further clients are left out.` : ""),
    table: { head: ["client", ...chosen.class_names.map((name) => `class ${name}`)], rows: chosen.counts.map((row, client) => [chosen.names[client], ...row]) },
  };
});
