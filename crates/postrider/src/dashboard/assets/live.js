// Shows attempts as they are recorded. What comes in is only ever put into a page as text.
"use strict";

const ROWS_MAX = 200;
const rows = document.getElementById("live");
const state = document.getElementById("live-state");
const button = document.getElementById("pause");
const kept = [];
let paused = false, seen = 0, skipped = false;

function cell(row, content, name) {
  const cell = row.insertCell();
  if (name) cell.className = name;
  cell.append(content);
  return cell;
}

function link(text, ...parts) {
  const place = document.createElement("a");
  place.href = "/" + ["apps", rows.dataset.app, ...parts].map(encodeURIComponent).join("/");
  place.textContent = text;
  return place;
}

function show(attempt) {
  const row = rows.insertRow(0);
  cell(row, attempt.timestamp.replace("T", " ").slice(0, 19));
  cell(row, link(attempt.msg?.eventType ?? attempt.msgId, "messages", attempt.msgId));
  cell(row, link(attempt.url, "endpoints", attempt.endpointId));
  const pill = document.createElement("span");
  pill.className = "pill " + (attempt.status === 0 ? "good" : "bad");
  pill.textContent = attempt.responseStatusCode > 0 ? attempt.responseStatusCode : attempt.statusText;
  cell(row, pill);
  cell(row, attempt.responseDurationMs + " ms", "number");
  while (rows.rows.length > ROWS_MAX) rows.deleteRow(-1);
}

function tell() {
  state.textContent = paused
    ? "Paused; " + kept.length + (kept.length === ROWS_MAX ? " or more" : "") + " came meanwhile."
    : seen === 0 ? "Connected. What is tried from now on shows up here."
    : skipped ? "More happens than can be shown: about 25 a second, the newest. Name an event type to see all of it."
    : seen + " since this page was opened.";
}

const events = new EventSource(rows.dataset.events);
events.addEventListener("open", tell);
events.addEventListener("error", () => {
  state.textContent = events.readyState === EventSource.CLOSED
    ? "The server has ended this. Load the page anew to go on."
    : "The connection is lost; trying again…";
});
events.addEventListener("skipped", () => {
  skipped = true;
  tell();
});
events.addEventListener("attempt", (event) => {
  const attempt = JSON.parse(event.data);
  seen += 1;
  if (paused) {
    kept.push(attempt);
    if (kept.length > ROWS_MAX) kept.shift();
  } else {
    show(attempt);
  }
  tell();
});

button.hidden = false;
button.addEventListener("click", () => {
  paused = !paused;
  button.textContent = paused ? "Go on" : "Pause";
  if (!paused) for (const attempt of kept.splice(0)) show(attempt);
  tell();
});
