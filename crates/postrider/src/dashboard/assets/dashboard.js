// What a page can do besides, where there is JavaScript. Without it everything works, only plainer.
"use strict";

const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
const words = new Intl.RelativeTimeFormat("en", { numeric: "always" });

/** Says beside a moment how long ago it was, or how far ahead it is. */
function relate(time) {
  const seconds = (Date.parse(time.dateTime) - Date.now()) / 1000;
  if (Number.isNaN(seconds)) return;
  const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? UNITS[3];
  time.title = words.format(Math.round(seconds / size), unit) + " (" + time.textContent + " UTC)";
}

for (const time of document.querySelectorAll("time")) relate(time);

for (const form of document.querySelectorAll("form[data-confirm]")) {
  form.addEventListener("submit", (event) => {
    if (!confirm(form.dataset.confirm)) event.preventDefault();
  });
}
