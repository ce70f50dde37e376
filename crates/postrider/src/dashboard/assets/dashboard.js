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

/** Goes on counting down. */
function count(place) {
  const seconds = Math.floor((Date.parse(place.dataset.until) - Date.now()) / 1000);
  if (Number.isNaN(seconds) || seconds < 0) return;
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  place.textContent = days ? days + " d " + hours + " h" : hours ? hours + " h " + minutes + " min"
    : minutes ? minutes + " min" : seconds + " s";
}

const countdowns = document.querySelectorAll("[data-until]");
if (countdowns.length) setInterval(() => countdowns.forEach(count), 1000);

for (const form of document.querySelectorAll("form[data-confirm]")) {
  form.addEventListener("submit", (event) => {
    if (!confirm(form.dataset.confirm)) event.preventDefault();
  });
}

/** Ticks everything on the page, without loading it anew. */
for (const link of document.querySelectorAll("a[data-tick]")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    for (const box of document.getElementsByName(link.dataset.tick)) box.checked = true;
  });
}

/** Copies what stands elsewhere on the page, where the browser lets pages do that. */
for (const button of document.querySelectorAll("button[data-copy]")) {
  if (!navigator.clipboard) continue;
  const label = button.textContent;
  button.hidden = false;
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copy).textContent;
    const copied = await navigator.clipboard.writeText(text).then(() => true, () => false);
    button.textContent = copied ? "Copied" : "Not allowed here: select it and copy it by hand";
    setTimeout(() => { button.textContent = label; }, 3000);
  });
}

/** Another page of ours, made by the browser's own loader: these pages never turn text into markup. */
function load(path) {
  return new Promise((done) => {
    const request = new XMLHttpRequest();
    request.open("GET", path);
    request.responseType = "document";
    request.addEventListener("loadend", () => done(request.status === 200 ? request.responseXML : null));
    request.send();
  });
}

/** Shows how far something has come, until it has ended. */
async function follow(place) {
  if (!place?.hasAttribute("data-refresh")) return;
  await new Promise((done) => setTimeout(done, 1500));
  // Whoever is about to press something there is not disturbed.
  const waits = document.hidden || place.contains(document.activeElement);
  const drawn = waits ? null : (await load(location.href))?.getElementById(place.id);
  if (drawn) place.replaceWith(document.adoptNode(drawn));
  follow(drawn ?? place);
}

for (const place of document.querySelectorAll("[data-refresh]")) follow(place);

/** Draws the preview anew while its form is being edited. */
for (const form of document.querySelectorAll("form[data-preview]")) {
  let waiting, latest = 0;
  form.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(async () => {
      const turn = ++latest;
      const page = await load(location.pathname + "?" + new URLSearchParams(new FormData(form)));
      if (!page || turn !== latest) return;
      const [shown, drawn] = [document, page].map((where) => where.querySelector(form.dataset.preview));
      if (shown && drawn) shown.replaceWith(document.adoptNode(drawn));
    }, 250);
  });
}

/** Takes a text over, and where the browser does not let us (plain HTTP), selects it. */
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const place = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(place.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(place);
    }
  });
}
