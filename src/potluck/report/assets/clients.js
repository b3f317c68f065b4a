// Clients one by one: sorted accuracies, differences to a chosen method, means per architecture, their samples.
const view = byId("client-view"), against = byId("client-reference");
fillSelect(against, data.groups.map((group, position) => [position, group.label]));
if (data.groups.length < 2) view.closest("label").hidden = true;

function rowsOf(group) {
  const columns = group.clients;
  return columns.accuracy.map((accuracy, at) => ({
    accuracy, pair: columns.pair[at], seed: columns.seed[at], name: columns.name[at], architecture: columns.architecture[at], train: columns.train[at],
  }));
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
  const groups = shown().filter((group) => group.clients.accuracy.length);
  const sorted = groups.map((group) => [group, rowsOf(group).sort((a, b) => a.accuracy - b.accuracy)]);
  return {
    traces: sorted.map(([group, rows]) => strip(group, rows, (row) => row.accuracy, "%{y:.2%}")),
    layout: layout(axis("clients, from worst to best", { tickformat: ".0%", range: [-0.02, 1.02] }), axis("final accuracy", { tickformat: ".0%" })),
    caption: groups.length ? "Every point is one client's own final accuracy." : "No client has been tested yet.",
    table: { head: ["client", "method", "architecture", "accuracy"], rows: sorted.flatMap(([group, rows]) => rows.map((row) => [row.name, group.label, row.architecture, percent(row.accuracy)])) },
  };
}

function differenceFigure() {
  const base = data.groups[Number(against.value)];
  const known = new Map(rowsOf(base).map((row) => [row.pair, row.accuracy]));
  const compared = shown().filter((group) => group !== base).map((group) => [
    group, rowsOf(group).filter((row) => known.has(row.pair)).map((row) => ({ ...row, gain: row.accuracy - known.get(row.pair) })).sort((a, b) => a.gain - b.gain),
  ]).filter(([, rows]) => rows.length);
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

chart("clients", () => {
  const difference = view.value === "difference";
  byId("client-reference-label").hidden = !difference;
  return difference ? differenceFigure() : sortedFigure();
});

chart("architectures", () => {
  const groups = shown().filter((group) => group.architectures.length);
  const traces = groups.map((group) => ({
    type: "bar", name: plain(group.label), x: group.architectures.map(([name]) => plain(name)), y: group.architectures.map(([, mean]) => mean),
    error_y: { type: "data", array: group.architectures.map(([, , std]) => std), color: css("--quiet"), thickness: 1.2, width: 3 },
    customdata: group.architectures.map(([, , std, clients]) => [percent(std), clients]), marker: bar(group),
    hovertemplate: "%{fullData.name}, %{x}<br><b>%{y:.2%}</b> ± %{customdata[0]}, %{customdata[1]} clients<extra></extra>",
  }));
  return {
    traces, layout: layout(axis("", { type: "category", fixedrange: true }), axis("mean final accuracy", { tickformat: ".0%", rangemode: "tozero" }), { barmode: "group", bargap: 0.25 }),
    caption: traces.length ? "Mean over the clients of an architecture; the whisker is one standard deviation." : "The runs do not tell the clients' architectures.",
    table: { head: ["architecture", "method", "accuracy", "± clients", "clients"], rows: groups.flatMap((group) => group.architectures.map(([name, mean, std, clients]) => [name, group.label, percent(mean), percent(std), clients])) },
  };
});

const partition = byId("sample-partition");
fillSelect(partition, data.partitions.map((each, position) => [position, each.label]));
partition.closest(".controls").hidden = data.partitions.length < 2;
const drawSamples = chart("samples", () => {
  const chosen = data.partitions[Number(partition.value)];
  if (!chosen) return { traces: [], caption: "The runs did not record how many samples of each class their clients hold." };
  const cells = chosen.counts.flatMap((row, client) => row.map((count, label) => ({ count, client, label }))).filter((cell) => cell.count > 0);
  const plot = byId("chart-samples");
  const wide = Math.max(200, plot.clientWidth - 80) / chosen.counts.length, high = 260 / chosen.counts[0].length;
  const greatest = Math.max(...cells.map((cell) => cell.count)), diameter = Math.max(5, Math.min(34, wide, 1.5 * high));
  return {
    traces: [{
      type: "scatter", mode: "markers", x: cells.map((cell) => cell.client), y: cells.map((cell) => cell.label), text: cells.map((cell) => plain(chosen.names[cell.client])),
      marker: { size: cells.map((cell) => Math.max(2, diameter * Math.sqrt(cell.count / greatest))), color: css("--up"), opacity: 0.75, line: { width: 0 } },
      customdata: cells.map((cell) => spaced(cell.count)), hovertemplate: "%{text}, class %{y}<br><b>%{customdata}</b> training samples<extra></extra>",
    }],
    layout: layout(axis("client", { range: [-0.7, chosen.counts.length - 0.3], zeroline: false, dtick: chosen.counts.length <= 20 ? 1 : undefined }), axis("class", { range: [-0.7, chosen.counts[0].length - 0.3], zeroline: false, dtick: chosen.counts[0].length <= 12 ? 1 : undefined })),
    caption: `The area of a bubble is the number of samples; the largest has ${spaced(greatest)}.` + (chosen.left_out ? ` ${spaced(chosen.left_out)} further clients are left out.` : ""),
    table: { head: ["client", ...chosen.counts[0].map((_, label) => `class ${label}`)], rows: chosen.counts.map((row, client) => [chosen.names[client], ...row]) },
  };
});
