"use strict";
// What all charts share: the data, which methods are shown, colours of the theme, axes, captions, number tables.
let data = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set(); // labels of methods that the charts leave out
let order = []; // labels in the order of the table, when it was sorted
const charts = [];
const readers = []; // what to do when there are new data, before the charts are drawn
const onData = (read) => { readers.push(read); read(); };
const byId = (id) => document.getElementById(id);
const touch = window.matchMedia("(pointer: coarse)").matches;
const systemDark = window.matchMedia("(prefers-color-scheme: dark)");

const isDark = () => (document.documentElement.dataset.theme || (systemDark.matches ? "dark" : "light")) === "dark";
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colourOf = (group) => (isDark() ? group.dark : group.light);
const place = (group) => { const at = order.indexOf(group.label); return at < 0 ? data.groups.indexOf(group) + order.length : at; };
const shown = () => data.groups.filter((group) => !hidden.has(group.label)).sort((a, b) => place(a) - place(b));

// Plotly reads a little HTML in texts and %{…} in templates; names from run folders must be neither.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
// A name for an axis: long ones lose their middle, since what tells settings apart is at the end.
function short(text) {
  const most = window.innerWidth < 600 ? 16 : 44;
  return plain(text.length <= most ? text : `${text.slice(0, most / 2 - 1)}…${text.slice(-most / 2)}`);
}
const faded = (hex, alpha) =>
  `rgba(${[1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)).join(",")},${alpha})`;

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Fills a list, keeping what was chosen where it still is in it.
function fillSelect(select, options, first) {
  const before = select.value || (first === undefined ? "" : String(first));
  select.replaceChildren(...options.map(([value, label]) => {
    const option = element("option", { value });
    option.textContent = label;
    return option;
  }));
  if (options.some(([value]) => String(value) === before)) select.value = before;
}

const percent = (value, digits = 2) => `${(100 * value).toFixed(digits)} %`;
const spaced = (value, digits = 0) => value.toLocaleString("en", { maximumFractionDigits: digits });

// The unit in which the greatest value has few digits, as [divisor, name].
function byteUnit(values) {
  const greatest = Math.max(0, ...values.filter(Number.isFinite));
  const power = Math.min(4, Math.max(0, Math.floor(Math.log2(greatest || 1) / 10)));
  return [1024 ** power, ["B", "KiB", "MiB", "GiB", "TiB"][power]];
}
function timeUnit(values) {
  const greatest = Math.max(0, ...values.filter(Number.isFinite));
  return greatest >= 7200 ? [3600, "hours"] : greatest >= 120 ? [60, "minutes"] : [1, "seconds"];
}

function axis(title, more = {}) {
  const line = css("--grid");
  return {
    title: { text: title, standoff: 8, font: { size: 13 } }, gridcolor: line, linecolor: css("--line"), zerolinecolor: css("--line"),
    tickfont: { size: 12 }, automargin: true, fixedrange: touch, ...more,
  };
}

function layout(xaxis, yaxis, more = {}) {
  return {
    xaxis, yaxis, showlegend: false, hovermode: "closest", dragmode: touch ? false : "zoom",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 8, r: 10, t: 12, b: 8 },
    font: { family: getComputedStyle(document.body).fontFamily, color: css("--quiet"), size: 13 },
    hoverlabel: { bgcolor: css("--panel"), bordercolor: css("--line"), font: { family: getComputedStyle(document.body).fontFamily, color: css("--text"), size: 13 }, align: "left", namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--quiet"), activecolor: css("--accent") },
    ...more,
  };
}

// A chart: `figure()` gives {traces, layout, caption, table: {head, rows}}, or {made: an element of its own} instead
// of traces and layout; with neither only the caption shows.
function chart(name, figure) {
  const plot = byId(`chart-${name}`);
  const caption = byId(`caption-${name}`);
  const numbers = element("details", { class: "numbers" }, element("summary", {}, "Show the numbers"));
  const box = element("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": `Numbers of the chart ${name}` });
  numbers.append(box);
  caption.after(numbers);
  let table = null;
  const fill = () => numbers.open && table && box.replaceChildren(numberTable(table));
  numbers.addEventListener("toggle", fill);
  const draw = () => {
    const drawn = figure();
    const own = drawn.made || null, empty = !own && !drawn.traces.length;
    plot.classList.toggle("empty", empty);
    plot.classList.toggle("own", Boolean(own));
    numbers.hidden = empty || !drawn.table;
    caption.textContent = drawn.caption;
    table = drawn.table;
    fill();
    if ((own || empty) && plot.data) Plotly.purge(plot);
    if (own) return plot.replaceChildren(own);
    if (empty) return plot.replaceChildren();
    if (!plot.data) plot.replaceChildren();
    const config = {
      displaylogo: false, responsive: true, displayModeBar: touch ? false : "hover",
      modeBarButtons: [["toImage", "zoom2d", "resetScale2d"]],
      showSendToCloud: false, plotlyServerURL: "", // by default Plotly offers to upload charts
      toImageButtonOptions: { format: "svg", filename: `potluck-${name}` },
    };
    return Plotly.react(plot, drawn.traces, drawn.layout, config);
  };
  charts.push(draw);
  return draw;
}

function numberTable({ head, rows }) {
  const cell = (tag, scope) => (value) => {
    const made = element(tag, scope ? { scope } : {});
    made.textContent = value === null || value === undefined ? "–" : value;
    return made;
  };
  const body = rows.slice(0, 1000).map(([first, ...rest]) =>
    element("tr", {}, cell("th", "row")(first), ...rest.map(cell("td"))));
  return element("table", {}, element("thead", {}, element("tr", {}, ...head.map(cell("th", "col")))), element("tbody", {}, ...body));
}

// Bars of several methods in one chart differ in pattern too.
const bar = (group) => {
  const at = group.position;
  return { color: colourOf(group), pattern: { shape: ["", "/", ".", "\\", "x", "-", "|"][at % 7], fgcolor: css("--panel"), fgopacity: 0.55, size: 7, solidity: 0.18, fillmode: "overlay" } };
};
const wholeNumbers = (values) => ({ rangemode: "tozero", tickformat: ",d", dtick: Math.max(0, ...values) <= 6 ? 1 : undefined });
const redraw = () => charts.forEach((draw) => draw());
