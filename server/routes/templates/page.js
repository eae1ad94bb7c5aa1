// Keeps the list of jobs up to date. Without it the page shows how things stood when it was loaded.
"use strict";

const busyMs = 1000, idleMs = 5000;
const jobs = document.getElementById("jobs");

const done = () => jobs.querySelectorAll('[data-state="done"]').length;
const busy = () => jobs.querySelector('[data-state="queued"], [data-state="running"]') !== null;

async function refresh() {
  try {
    const reply = await fetch("/page/jobs", { cache: "no-store" });
    if (reply.ok) {
      const before = done();
      jobs.replaceChildren(...new DOMParser().parseFromString(await reply.text(), "text/html").body.childNodes);
      if (done() > before) location.reload(); // there is a new bundle
    }
  } catch {
    // the server is away; it may come back
  }
  setTimeout(refresh, busy() ? busyMs : idleMs);
}

setTimeout(refresh, busy() ? busyMs : idleMs);
