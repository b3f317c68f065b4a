// Heat maps as tables: numbers in the cells where they fit, else one strip of colours per row.
const CIVIDIS = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 182, 102], [254, 232, 56]];
const mixed = (stops, share) => {
  const at = Math.max(0, Math.min(1, share)) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
  return stops[low].map((from, part) => Math.round(from + (at - low) * (stops[low + 1][part] - from)));
};
const apart = () => [[179, 88, 6], isDark() ? [38, 45, 54] : [247, 247, 247], [33, 102, 172]];
const brightness = (rgb) => {
  const [r, g, b] = rgb.map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ink = (rgb) => (brightness(rgb) > 0.179 ? "#000" : "#fff");

// rows and columns are names, values[row][column] numbers or null; signed ones are coloured around zero.
function heat({ rows, columns, values, show, signed = false, title, corner = "method", tell }) {
  const known = values.flat().filter(Number.isFinite);
  let low = known.reduce((a, b) => Math.min(a, b), Infinity), high = known.reduce((a, b) => Math.max(a, b), -Infinity);
  if (signed) { high = Math.max(Math.abs(low), Math.abs(high)); low = -high; }
  const stops = signed ? apart() : CIVIDIS;
  const colour = (value) => mixed(stops, high > low ? (value - low) / (high - low) : 1);
  const room = (byId("main").clientWidth - (window.innerWidth < 600 ? 150 : 240)) / columns.length;
  const body = room >= 34 && columns.length <= 40 ? written(rows, columns, values, show, colour, corner, room) : strips(rows, columns, values, show, colour, tell, corner);
  const scale = element("div", { class: "scale" }, show(low), element("i", { style: `background:linear-gradient(to right,${stops.map((stop) => `rgb(${stop})`).join(",")})` }), show(high));
  return element("div", { class: "heat" }, element("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": title }, body), ...(known.length ? [scale] : []));
}

function written(rows, columns, values, show, colour, corner, room) {
  const upright = columns.some((name) => 9 * name.length + 12 > room); // long names stand on end
  const cell = (value) => {
    if (!Number.isFinite(value)) return element("td", {}, "–");
    const rgb = colour(value);
    return element("td", { style: `background:rgb(${rgb});color:${ink(rgb)}` }, show(value));
  };
  const head = element("tr", {}, element("th", { scope: "col" }, corner), ...columns.map((name) => element("th", { scope: "col" }, name)));
  return element("table", { class: upright ? "cells upright" : "cells" }, element("thead", {}, head),
    element("tbody", {}, ...rows.map((name, at) => element("tr", {}, element("th", { scope: "row" }, name), ...values[at].map(cell)))));
}

function strips(rows, columns, values, show, colour, tell, corner) {
  const line = (name, at) => {
    const strip = element("canvas", { width: columns.length, height: 1, "aria-hidden": "true" });
    const pen = strip.getContext("2d"), image = pen.createImageData(columns.length, 1);
    values[at].forEach((value, column) => image.data.set(Number.isFinite(value) ? [...colour(value), 255] : [0, 0, 0, 0], 4 * column));
    pen.putImageData(image, 0, 0);
    strip.addEventListener("mousemove", (event) => {
      const column = Math.min(columns.length - 1, Math.floor(event.offsetX / strip.clientWidth * columns.length)), value = values[at][column];
      strip.title = `${tell ? tell(at, column) : `${name}, ${columns[column]}`}: ${Number.isFinite(value) ? show(value) : "not tested"}`;
    });
    return element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, strip));
  };
  return element("table", { class: rows.length > 40 ? "strips dense" : "strips" }, element("tbody", {}, ...rows.map(line),
    element("tr", {}, element("th", { scope: "row" }, corner), element("td", { class: "ends" }, element("div", {}, element("span", {}, columns[0]), element("span", {}, columns.at(-1)))))));
}
