// What happens when somebody presses, chooses or types something.
function paintSwatches() {
  document.querySelectorAll(".swatch").forEach((swatch) => swatch.style.setProperty("--swatch", colourOf(data.groups[Number(swatch.dataset.group)])));
}

function paintTheme() {
  const button = byId("theme");
  button.setAttribute("aria-pressed", String(isDark()));
  button.textContent = isDark() ? "Light mode" : "Dark mode";
  paintSwatches();
  redraw();
}
byId("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  paintTheme();
});
systemDark.addEventListener("change", paintTheme);

const toggleBar = document.querySelector(".methods");
toggleBar.hidden = data.groups.length < 2;
toggleBar.addEventListener("click", (event) => {
  const button = event.target.closest(".toggle");
  if (!button) return;
  const position = Number(button.dataset.group);
  if (!hidden.delete(position)) hidden.add(position);
  button.setAttribute("aria-pressed", String(!hidden.has(position)));
  redraw();
});

document.querySelectorAll(".controls").forEach((controls) => controls.addEventListener("input", redraw));

document.querySelectorAll(".copy").forEach((button) => button.addEventListener("click", async () => {
  const command = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(command.textContent);
    byId("status").textContent = "Command copied";
    button.textContent = "Copied";
  } catch { // no clipboard for pages opened from disk in some browsers: select it for the reader instead
    getSelection().selectAllChildren(command);
    byId("status").textContent = "Command selected";
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}));

let resized = 0;
window.addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(drawSamples, 200); // bubbles are sized by the width there is
});

paintTheme();
document.documentElement.dataset.ready = "true";
