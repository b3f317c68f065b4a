// Accuracy and loss against rounds, bytes or time, with a band over seeds.
const AXES = { rounds: "rounds", bytes: "bytes sent", seconds: "time", virtual_seconds: "simulated time" };
const metric = byId("curve-metric"), along = byId("curve-axis"), smoothing = byId("curve-smooth"), curveView = byId("curve-view");
onData(() => {
  fillSelect(metric, Object.entries(data.metrics));
  fillSelect(along, data.axes.map((name) => [name, AXES[name]]));
});
if (data.groups.length > 8) curveView.value = "apart"; // more lines than this nobody follows in one picture

// The same centred window as potluck.analysis.curves.smooth: it shrinks at both ends and never lags.
function smooth(values, window) {
  return values.map((_, at) => {
    const half = Math.min(at, values.length - 1 - at, (window - 1) / 2);
    let sum = 0;
    for (let other = at - half; other <= at + half; other += 1) sum += values[other];
    return sum / (2 * half + 1);
  });
}

function placed(curves) {
  const name = along.value;
  const all = curves.flatMap(({ curve }) => curve[name]);
  if (name === "bytes") {
    const [divisor, unit] = byteUnit(all);
    return [divisor, `traffic of all clients, up and down (${unit})`];
  }
  if (name === "rounds") return [1, "round"];
  const [divisor, unit] = timeUnit(all);
  return [divisor, `${name === "seconds" ? "wall-clock" : "simulated"} time (${unit})`];
}

function curveTraces({ group, curve }, divisor, share) {
  const x = curve[along.value].map((value) => value / divisor);
  const y = smooth(curve.mean, Number(smoothing.value));
  const colour = colourOf(group);
  const traces = [];
  if (curve.std) {
    const above = y.map((value, at) => value + curve.std[at]), below = y.map((value, at) => value - curve.std[at]);
    traces.push({
      x: [...x, ...[...x].reverse()], y: [...above, ...below.reverse()], fill: "toself", mode: "lines",
      fillcolor: faded(colour, 0.16), line: { width: 0 }, hoverinfo: "skip", type: "scatter",
    });
  }
  const number = share ? "%{y:.2%}" : "%{y:.4f}";
  const spread = curve.std ? " ± %{customdata[1]}" : "";
  traces.push({
    x, y, type: "scatter", mode: x.length * 22 <= byId("chart-curves").clientWidth ? "lines+markers" : "lines", name: plain(group.label),
    customdata: curve.rounds.map((round, at) => [round, curve.std ? (share ? percent(curve.std[at]) : curve.std[at].toFixed(4)) : ""]),
    line: { color: colour, width: 2.5, dash: group.dash }, marker: { color: colour, symbol: group.symbol, size: 7 },
    hovertemplate: `%{fullData.name}<br>round %{customdata[0]}: <b>${number}</b>${spread}<extra></extra>`,
  });
  return traces;
}

function curveTable(curves, share) {
  const rounds = [...new Set(curves.flatMap(({ curve }) => curve.rounds))].sort((a, b) => a - b);
  const kept = rounds.filter((_, at) => rounds.length <= 200 || at % Math.ceil(rounds.length / 200) === 0);
  const lookUp = curves.map(({ curve }) => new Map(curve.rounds.map((round, at) => [round, curve.mean[at]])));
  const show = (value) => (value === undefined ? null : share ? percent(value) : value.toFixed(4));
  return { head: ["round", ...curves.map(({ group }) => group.label)], rows: kept.map((round) => [round, ...lookUp.map((known) => show(known.get(round)))]) };
}

// One small picture per method, all with the same axes; the reference is in each of them, in grey.
function smallMultiples(curves, divisor, share) {
  const xs = curves.flatMap(({ curve }) => curve[along.value]), ys = curves.flatMap(({ curve }) => curve.mean);
  const right = Math.max(...xs), [low, high] = [share ? Math.min(0, ...ys) : Math.min(...ys), Math.max(...ys)];
  const points = ({ curve }) => smooth(curve.mean, Number(smoothing.value)).map((value, at) =>
    `${(4 + 192 * (curve[along.value][at] / (right || 1))).toFixed(1)},${(86 - 78 * ((value - low) / (high - low || 1))).toFixed(1)}`).join(" ");
  const line = (each, colour, width, dash = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    for (const [name, value] of Object.entries({ points: points(each), fill: "none", stroke: colour, "stroke-width": width, "stroke-dasharray": dash, "vector-effect": "non-scaling-stroke" })) made.setAttribute(name, value);
    return made;
  };
  const reference = curves.find(({ group }) => group === data.groups[data.reference]);
  const show = (value) => (share ? percent(value, 1) : value.toFixed(3));
  const one = (each) => {
    const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    for (const [name, value] of Object.entries({ viewBox: "0 0 200 90", "aria-hidden": "true", preserveAspectRatio: "none" })) picture.setAttribute(name, value);
    if (reference && reference !== each) picture.append(line(reference, css("--quiet"), 1.2, "3 3"));
    picture.append(line(each, colourOf(each.group), 2.4));
    return element("div", { class: "small" }, element("b", {}, each.group.label), picture, element("span", {}, `${show(each.curve.mean[0])} → ${show(each.curve.mean.at(-1))}`));
  };
  const words = `Every picture has the same axes: ${show(low)} to ${show(high)} upwards, 0 to ${spaced(right / divisor, 1)} to the right.`
    + (reference && curves.length > 1 ? ` The grey dashes are ${reference.group.label}.` : "");
  return [element("div", { class: "multiples" }, ...curves.map(one)), words];
}

chart("curves", () => {
  const name = metric.value, share = name.startsWith("accuracy");
  const curves = shown().map((group) => ({ group, curve: group.curves[name] })).filter(({ curve }) => curve && curve[along.value]);
  if (!curves.length) return { traces: [], caption: data.axes.length ? "Nothing to show: choose a method above." : "No round has been evaluated yet." };
  const [divisor, title] = placed(curves);
  if (curveView.value === "apart") {
    const [made, words] = smallMultiples(curves, divisor, share);
    return { made, caption: `${data.metrics[name]} against ${title}. ${words}`, table: curveTable(curves, share) };
  }
  const marks = share && data.target && name === "accuracy" ? [{
    type: "line", xref: "paper", x0: 0, x1: 1, y0: data.target, y1: data.target, line: { color: css("--quiet"), width: 1, dash: "dot" },
  }] : [];
  const seeds = Math.max(...curves.map(({ curve }) => curve.seeds));
  const rounds = along.value === "rounds" ? wholeNumbers(curves.map(({ curve }) => curve.rounds.at(-1))) : { rangemode: "tozero" };
  return {
    traces: curves.flatMap((each) => curveTraces(each, divisor, share)),
    layout: layout(axis(title, rounds), axis(data.metrics[name], share ? { tickformat: ".0%" } : {}), { shapes: marks }),
    caption: (seeds > 1 ? `Mean of ${seeds} seeds; the band is one standard deviation. ` : "")
      + (marks.length ? `The dotted line is the target of ${percent(data.target, 0)}.` : ""),
    table: curveTable(curves, share),
  };
});
