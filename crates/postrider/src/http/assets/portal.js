// The portal of one application. The token comes in the part of the address that browsers never send
// anywhere; it is taken out of the address bar at once and kept for this tab only. Everything is shown
// as text: nothing that comes from the API is ever read as HTML.
"use strict";

const ATTEMPTS_SHOWN = 20;

function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  if (given) {
    history.replaceState(null, "", location.pathname);
    sessionStorage.setItem("token", given);
  }
  return sessionStorage.getItem("token");
}

/** The application that a token is for, as the token itself says. */
function applicationOf(token) {
  const part = token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/");
  return JSON.parse(atob(part)).sub;
}

async function ask(token, path) {
  const response = await fetch("/api/v1/" + path, { headers: { authorization: "Bearer " + token } });
  if (response.status === 401) throw new Error("This link has expired. Please ask for a new one.");
  if (!response.ok) throw new Error("The server answered " + response.status + ". Please try again later.");
  return response.json();
}

function element(name, text) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  return made;
}

function table(titles, rows) {
  const made = element("table");
  const head = made.createTHead().insertRow();
  for (const title of titles) head.append(element("th", title));
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const text of row) line.insertCell().textContent = text;
  }
  return made;
}

async function show() {
  const token = takeToken();
  if (!token) throw new Error("This page is opened by a link with a key. Please ask for one.");
  const app = "app/" + encodeURIComponent(applicationOf(token));
  const application = await ask(token, app);
  document.title = application.name;
  document.getElementById("name").textContent = application.name;

  const content = document.getElementById("content");
  const endpoints = (await ask(token, app + "/endpoint?limit=50")).data;
  content.append(element("h2", "Endpoints"));
  if (endpoints.length === 0) content.append(element("p", "There are none yet."));
  else {
    const rows = endpoints.map((endpoint) => [
      endpoint.url,
      endpoint.description,
      endpoint.eventTypes ? endpoint.eventTypes.join(", ") : "all",
      endpoint.disabled ? "disabled" : "enabled",
    ]);
    content.append(table(["URL", "Description", "Event types", "State"], rows));
  }
  for (const endpoint of endpoints) {
    const path = app + "/attempt/endpoint/" + encodeURIComponent(endpoint.id);
    const attempts = (await ask(token, path + "?with_content=false&limit=" + ATTEMPTS_SHOWN)).data;
    content.append(element("h2", "Attempts at " + endpoint.url));
    if (attempts.length === 0) {
      content.append(element("p", "There are none yet."));
      continue;
    }
    const rows = attempts.map((attempt) => [
      new Date(attempt.timestamp).toLocaleString(),
      attempt.msgId,
      attempt.statusText,
      attempt.responseStatusCode ? String(attempt.responseStatusCode) : "none",
      attempt.responseDurationMs + " ms",
    ]);
    content.append(table(["Time", "Message", "Result", "Answer", "Took"], rows));
  }
}

const state = document.getElementById("state");
show().then(
  () => state.remove(),
  (error) => {
    state.className = "bad";
    state.textContent = error.message;
  },
);
