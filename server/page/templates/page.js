// Keeps a view up to date while it is visible, and makes its filters quick. Without it, views show how things stood.
"use strict";

const main = document.getElementById("main"), live = document.getElementById("live");
const refreshMs = () => 1000 * Number(main.dataset.refreshS || 5);
let etag = null, timer = 0;

// What a person has opened stays open, and what has the focus keeps it.
function exchange(old, fresh) {
  const open = [...old.querySelectorAll("details")].map((one) => one.open);
  fresh.querySelectorAll("details").forEach((one, place) => { one.open = open[place] ?? false; });
  if (old.isEqualNode(fresh)) return;
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  const kind = focused && focused.tagName.toLowerCase(), address = focused && focused.getAttribute("href");
  const place = focused ? [...old.querySelectorAll(kind)].indexOf(focused) : -1;
  const scrolled = [...old.querySelectorAll(".wide, pre")].map((one) => [one.scrollLeft, one.scrollTop]);
  old.replaceChildren(...fresh.childNodes);
  old.querySelectorAll(".wide, pre").forEach((one, number) => {
    [one.scrollLeft, one.scrollTop] = scrolled[number] ?? [0, 0];
  });
  if (focused) {
    const same = [...old.querySelectorAll(kind)];
    (same.find((one) => address && one.getAttribute("href") === address) ?? same[place])?.focus({ preventScroll: true });
  }
}

function show(text) {
  const page = new DOMParser().parseFromString(text, "text/html"), fresh = page.getElementById("main");
  if (!fresh) return;
  main.dataset.refreshS = fresh.dataset.refreshS;
  for (const section of fresh.querySelectorAll("[data-live]")) {
    const old = document.getElementById(section.id);
    if (!old) return location.reload(); // the view has another form now
    exchange(old, section);
  }
}

function say(text) {
  if (live.textContent !== text) live.textContent = text;
}

async function refresh() {
  try {
    const headers = { Accept: "text/html", ...(etag && { "If-None-Match": etag }) };
    const reply = await fetch(location.href, { headers, cache: "no-store" });
    if (reply.ok) {
      etag = reply.headers.get("ETag");
      show(await reply.text());
    }
    say(reply.ok || reply.status === 304 ? "live" : "not live: the server refuses");
  } catch {
    say("not live: the server is away");
  }
  wait();
}

function wait() {
  clearTimeout(timer);
  if (document.visibilityState === "visible") timer = setTimeout(refresh, refreshMs());
}

document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") refresh(); else clearTimeout(timer);
});

for (const form of document.querySelectorAll("form.filters")) {
  form.addEventListener("change", (event) => {
    if (event.target.tagName === "SELECT" || event.target.type === "checkbox") form.requestSubmit();
  });
  form.addEventListener("submit", () => { // addresses of views are read by people
    for (const field of form.elements) if (field.name && !field.value) field.disabled = true;
  });
}
addEventListener("pageshow", () => {
  document.querySelectorAll("form.filters [disabled]").forEach((field) => { field.disabled = false; });
});

document.addEventListener("keydown", (event) => {
  const search = document.querySelector("[aria-keyshortcuts='/']");
  const typing = event.target.closest?.("input, select, textarea");
  if (event.key === "/" && search && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    search.focus();
    search.select();
  }
});

wait();
