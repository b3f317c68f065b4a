// The table of methods and the bar of methods: sorted, searched, columns and rows chosen.
const search = byId("method-search"), chooser = byId("column-chooser");
const sorting = { column: null, down: true };
let chosenColumns = null; // names, once the reader has chosen; before that what fits

const table = () => byId("methods-table");
const headings = () => [...table().querySelectorAll("thead th")];
const labelOf = (row) => data.groups[Number(row.dataset.group)].label;

function showColumns(names) {
  table().querySelectorAll("[data-column]").forEach((cell) => { if (cell.dataset.column !== "method") cell.hidden = !names.includes(cell.dataset.column); });
}

// The usual columns, less the least telling ones for which the page is too narrow.
function fitColumns() {
  if (!table()) return [];
  if (chosenColumns) return showColumns(chosenColumns);
  const usual = headings().filter((heading) => heading.dataset.usual === "true"), room = table().parentElement.clientWidth;
  let kept = usual.map((heading) => heading.dataset.column);
  const rank = new Map(usual.map((heading) => [heading.dataset.column, Number(heading.dataset.rank)]));
  showColumns(kept);
  while (kept.length > 1 && table().scrollWidth > room) {
    const least = kept.reduce((worst, name) => (rank.get(name) >= rank.get(worst) ? name : worst));
    kept = kept.filter((name) => name !== least);
    showColumns(kept);
  }
  return kept;
}

function fillChooser() {
  chooser.hidden = !table();
  if (!table()) return;
  const visible = new Set(headings().filter((heading) => !heading.hidden).map((heading) => heading.dataset.column));
  const boxes = headings().filter((heading) => heading.dataset.column !== "method").map((heading) => {
    const box = element("input", { type: "checkbox", value: heading.dataset.column });
    box.checked = visible.has(heading.dataset.column);
    return element("label", { class: "check" }, box, heading.dataset.title);
  });
  chooser.querySelector("div").replaceChildren(...boxes);
}
chooser.addEventListener("change", () => {
  chosenColumns = [...chooser.querySelectorAll("input:checked")].map((box) => box.value);
  fitColumns();
});

function sortTable() {
  const body = table().tBodies[0], { column, down } = sorting;
  headings().forEach((heading) => heading.setAttribute("aria-sort", heading.dataset.column !== column ? "none" : down ? "descending" : "ascending"));
  if (!column) { order = []; return; }
  const valueOf = (row) => {
    const cell = row.querySelector(`td[data-column="${column}"]`);
    return cell.dataset.value !== "" ? Number(cell.dataset.value) : parseFloat(cell.textContent); // who sends nothing sent 0
  };
  const rows = [...body.rows].map((row) => [row, column === "method" ? labelOf(row) : valueOf(row)]);
  const missing = (value) => typeof value === "number" && Number.isNaN(value);
  rows.sort(([, a], [, b]) => {
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    return (down ? -1 : 1) * (typeof a === "string" ? a.localeCompare(b) : a - b);
  });
  body.append(...rows.map(([row]) => row));
  order = rows.map(([row]) => labelOf(row));
}

function setUpTable() {
  fillChooser();
  if (!table()) return;
  headings().filter((heading) => !heading.dataset.title).forEach((heading) => {
    heading.dataset.title = heading.innerText.replace(/\s+/g, " ").trim();
    const button = element("button", { type: "button", class: "sort" }, ...heading.childNodes);
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const name = heading.dataset.column;
      // A second press turns the order round, a third one gives the given order back.
      if (sorting.column !== name) { sorting.column = name; sorting.down = name !== "method"; }
      else if (sorting.down === (name !== "method")) sorting.down = !sorting.down;
      else sorting.column = null;
      sortTable();
      if (!sorting.column) table().tBodies[0].append(...[...table().tBodies[0].rows].sort((a, b) => a.dataset.group - b.dataset.group));
      byId("status").textContent = sorting.column ? `Sorted by ${heading.dataset.title}` : "In the given order";
      redraw();
    });
  });
  sortTable();
  fitColumns();
  fillChooser();
  findMethods();
}

const toggleBar = document.querySelector(".methods"), toggles = byId("method-toggles");
const found = (label) => label.toLowerCase().includes(search.value.trim().toLowerCase());
function findMethods() {
  if (!table()) return;
  [...table().tBodies[0].rows].forEach((row) => { row.hidden = !found(labelOf(row)); });
  toggles.querySelectorAll(".toggle").forEach((button) => {
    const { label } = data.groups[Number(button.dataset.group)];
    button.hidden = !found(label);
    button.setAttribute("aria-pressed", String(!hidden.has(label)));
  });
  byId("methods-shown").textContent = `${shown().length} of ${data.groups.length} in the charts`;
}
search.addEventListener("input", findMethods);

function choose(keep) {
  data.groups.forEach((group) => (keep(group.label) ? hidden.delete(group.label) : hidden.add(group.label)));
  findMethods();
  redraw();
}
toggleBar.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.choose === "all") return choose(() => true);
  if (button.dataset.choose === "none") return choose(() => false);
  if (button.dataset.choose === "found") return choose(found);
  const { label } = data.groups[Number(button.dataset.group)];
  choose((other) => (other === label ? hidden.has(label) : !hidden.has(other)));
});
const layOutMethods = () => {
  toggleBar.hidden = data.groups.length < 2;
  toggleBar.classList.toggle("many", data.groups.length > 6);
  setUpTable();
};
