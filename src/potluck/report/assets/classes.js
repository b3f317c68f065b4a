// Results by class: accuracy of each class, confusion matrix, calibration.
const confused = byId("confusion-method"), confusedClient = byId("confusion-client");
onData(() => fillSelect(confused, data.groups.map((group, position) => [position, group.label]).filter(([position]) => data.groups[position].classes)));
const NOT_RECORDED = "Recorded by finished runs, unless nodes do not share their results.";

function classShares(entries, size) {
  const total = Array(size).fill(0), correct = Array(size).fill(0);
  entries.forEach(([truth, guess, count]) => { total[truth] += count; if (truth === guess) correct[truth] += count; });
  return total.map((count, label) => (count ? correct[label] / count : null));
}

chart("classes", () => {
  const groups = shown().filter((group) => group.classes);
  if (!groups.length) return { traces: [], caption: NOT_RECORDED };
  const size = Math.max(...groups.map((group) => group.classes.size)), columns = groups.find((group) => group.classes.size === size).classes.names;
  const values = groups.map((group) => classShares(group.classes.confusion, size));
  return {
    made: heat({ rows: groups.map((group) => group.label), columns, values, show: (value) => (100 * value).toFixed(0), corner: "method, class", title: "Accuracy of every class under every method, in %" }),
    caption: "The share of each class's test samples classified correctly, in %, over all clients together.",
    table: { head: ["method", ...columns], rows: groups.map((group, at) => [group.label, ...values[at].map((value) => (value === null ? null : percent(value, 1)))]) },
  };
});

chart("confusion", () => {
  const group = data.groups[Number(confused.value)], results = group && group.classes;
  byId("confusion-controls").hidden = !results;
  if (!results) return { traces: [], caption: NOT_RECORDED };
  const roster = data.rosters[group.clients[0].roster], names = new Map(roster.index.map((index, at) => [String(index), roster.name[at]]));
  fillSelect(confusedClient, [["", "all clients"], ...Object.keys(results.clients).map((client) => [client, names.get(client) || `client ${client}`])]);
  confusedClient.closest("label").hidden = !Object.keys(results.clients).length;
  const entries = results.clients[confusedClient.value] || results.confusion;
  const columns = results.names, counts = columns.map(() => Array(results.size).fill(0));
  entries.forEach(([truth, guess, count]) => { counts[truth][guess] += count; });
  const totals = counts.map((row) => row.reduce((a, b) => a + b, 0));
  const values = counts.map((row, truth) => row.map((count) => (totals[truth] ? count / totals[truth] : null)));
  const worst = entries.filter(([truth, guess]) => truth !== guess).sort((a, b) => b[2] - a[2])[0];
  return {
    made: heat({ rows: columns.map((label) => `true ${label}`), columns, values, show: (value) => (100 * value).toFixed(0), corner: "predicted", title: `Confusion matrix of ${group.label}, in % of each true class`, tell: (truth, guess) => `true ${columns[truth]}, predicted ${columns[guess]}` }),
    caption: `Rows are true classes and sum to 100 %; the diagonal is correct. ${spaced(totals.reduce((a, b) => a + b, 0))} test samples of ${confusedClient.value ? names.get(confusedClient.value) : "all clients"}.`
      + (worst ? ` Most frequent error: ${columns[worst[0]]} predicted as ${columns[worst[1]]}, ${spaced(worst[2])} times.` : ""),
    table: { head: ["true class", ...columns], rows: counts.map((row, truth) => [columns[truth], ...row]) },
  };
});

chart("calibration", () => {
  const groups = shown().filter((group) => group.classes);
  if (!groups.length) return { traces: [], caption: NOT_RECORDED };
  const points = groups.map((group) => group.classes.bins.filter(([count]) => count > 0).map(([count, right, sure]) => [sure / count, right / count, count]));
  const traces = groups.map((group, at) => ({
    type: "scatter", mode: "lines+markers", name: plain(group.label), x: points[at].map(([sure]) => sure), y: points[at].map(([, right]) => right), customdata: points[at].map(([, , count]) => spaced(count)),
    line: { color: colourOf(group), width: 2, dash: group.dash }, marker: { color: colourOf(group), symbol: group.symbol, size: 7 },
    hovertemplate: "%{fullData.name}<br>confidence %{x:.0%}, <b>%{y:.0%}</b> correct<br>%{customdata} predictions<extra></extra>",
  }));
  return {
    traces, layout: layout(axis("confidence of a prediction", { tickformat: ".0%", range: [0, 1.02] }), axis("share of correct predictions", { tickformat: ".0%", range: [0, 1.02] }),
      { shapes: [{ type: "line", x0: 0, y0: 0, x1: 1, y1: 1, line: { color: css("--quiet"), width: 1, dash: "dot" } }] }),
    caption: "On the dotted line confidence equals accuracy; below it predictions are overconfident. All clients together, in fifteen bins.",
    table: { head: ["method", "confidence", "accuracy", "predictions"], rows: groups.flatMap((group, at) => points[at].map(([sure, right, count]) => [group.label, percent(sure, 1), percent(right, 1), spaced(count)])) },
  };
});
