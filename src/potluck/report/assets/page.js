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

document.querySelectorAll(".controls").forEach((controls) => controls.addEventListener("input", redraw));

document.addEventListener("click", async (event) => {
  const button = event.target.closest(".copy");
  if (!button) return;
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
});

let resized = 0, before = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth === before) return; // a phone's address bar comes and goes
  before = window.innerWidth;
  clearTimeout(resized);
  resized = setTimeout(() => { fitColumns(); fillChooser(); redraw(); }, 200); // columns, bubbles and cells go by the width there is
});

layOutMethods();
paintTheme();
document.documentElement.dataset.ready = "true";
