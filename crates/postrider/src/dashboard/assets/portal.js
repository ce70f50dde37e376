// Opens a session with the key that a link brings. It is in the part of the address that browsers never send anywhere, is
// taken out of the address bar at once, and is not kept.
"use strict";

const key = new URLSearchParams(location.hash.slice(1)).get("key");
if (key) {
  history.replaceState(null, "", location.pathname);
  document.getElementById("token").value = key;
  const [entry, ask] = [document.getElementById("entry"), document.getElementById("ask")];
  if (ask) {
    document.getElementById("state").hidden = true;
    ask.hidden = entry.hidden = false;
  } else {
    entry.submit();
  }
} else {
  document.getElementById("state").textContent = "This page is opened by a link with a key. Please ask for one.";
}
