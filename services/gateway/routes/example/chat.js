// A chat over the session gateway in one file, without a library: what an embedding page has to do.
"use strict";

const query = new URLSearchParams(location.search);
const agent = query.get("agent") || "";
const base = `/api/agents/${encodeURIComponent(agent)}/${query.has("preview") ? "preview/" : ""}eve/v1`;
const kept = `session of ${base}`;
const part = (id) => document.getElementById(id);
let sessionId = sessionStorage.getItem(kept) || "";
let next = 0; // The index that comes next: where a reconnect goes on.
let run = null; // The run that is shown, with its text from index to index.
let following = null; // What ends the stream that is read.
let unsent = null; // A message that was given back, with the key that it was sent with.

part("where").textContent = agent ? `Agent ${agent}` : "Add ?agent=AGENT_ID to the address of this page.";

function say(text) {
  part("status").textContent = text;
}

function show(who, text, className) {
  const item = document.createElement("li");
  const title = document.createElement("h2");
  const body = document.createElement("p");
  title.textContent = who;
  body.textContent = text;
  item.append(title, body);
  if (className) item.className = className;
  part("log").append(item);
  item.scrollIntoView({ block: "nearest" });
  return body;
}

function working(active) {
  part("cancel").disabled = !active;
  part("send").disabled = active || !agent;
}

// Each event once, whatever stream brought it.
function take(event) {
  if (event.index < next) return;
  next = event.index + 1;
  const handle = handlers[event.type];
  if (handle) handle(event);
}

const handlers = {
  started(event) {
    keep(event.sessionId);
    part("asks").replaceChildren();
    working(true);
    if (event.resumed) {
      say("The agent goes on.");
      return;
    }
    const text = (event.message || []).map((block) => block.text).join("\n");
    if (text) show("You", text);
    run = { id: event.runId, deltas: [], body: null };
    say("The agent works.");
  },
  "text-delta"(event) {
    if (event.replaces !== undefined) run.deltas = run.deltas.filter((delta) => delta.index < event.replaces);
    run.deltas.push(event);
    run.body = run.body || show("Agent", "");
    run.body.textContent = run.deltas.map((delta) => delta.delta).join("");
  },
  "input-requested"(event) {
    for (const ask of [...part("asks").children]) if (!event.pending.includes(ask.dataset.id)) ask.remove();
    if (![...part("asks").children].some((ask) => ask.dataset.id === event.requestId)) ask(event);
    say("The agent waits for you.");
    part("send").disabled = true;
  },
  completed(event) {
    run.body = run.body || show("Agent", "");
    run.body.textContent = event.output;
    over("Done.");
  },
  failed(event) {
    show("Failed", `${event.message} (${event.code})`, "failed");
    over("The run failed.");
  },
  cancelled() {
    show("Cancelled", "The run was stopped.");
    over("Cancelled.");
  },
};

function over(text) {
  part("asks").replaceChildren();
  working(false);
  say(text);
}

function ask({ requestId, input }) {
  const box = document.createElement("fieldset");
  const title = document.createElement("legend");
  const detail = document.createElement("pre");
  box.dataset.id = requestId;
  title.textContent = input.type === "question" ? input.prompt || input.tool : `Allow ${input.tool}?`;
  detail.textContent = input.type === "question" ? "" : JSON.stringify(input.arguments, null, 2);
  box.append(title, detail);
  if (input.type === "question") {
    const field = document.createElement("input");
    const send = button("Answer", () => answer({ requestId, text: field.value }));
    field.setAttribute("aria-label", title.textContent);
    field.addEventListener("keydown", (event) => event.key === "Enter" && send.click());
    box.append(field, send);
  } else {
    for (const option of input.options) box.append(button(option.label, () => answer({ requestId, optionId: option.id })));
  }
  part("asks").append(box);
  // Whoever is writing would decide with the next key without meaning to.
  if (document.activeElement !== part("text") || !part("text").value) box.querySelector("input, button").focus();
}

function button(label, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = label;
  made.addEventListener("click", act);
  return made;
}

function keep(id) {
  sessionId = id;
  sessionStorage.setItem(kept, id);
}

// Also where the page comes over plain HTTP, so crypto.randomUUID is not there.
function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function post(path, body, key) {
  const headers = { "content-type": "application/json", ...(key ? { "idempotency-key": key } : {}) };
  return fetch(base + path, { method: "POST", headers, body: JSON.stringify(body), credentials: "same-origin" });
}

async function refused(response) {
  const error = (await response.json().catch(() => ({}))).error || {};
  show("Refused", `${error.message || response.statusText} (${response.status})`, "failed");
  say("The request was refused.");
}

// Events of a response, until it ends.
async function read(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const frames = text.split("\n\n");
    text = frames.pop();
    for (const frame of frames) {
      const data = frame.split("\n").find((line) => line.startsWith("data: "));
      if (data) take(JSON.parse(data.slice(6)));
    }
  }
}

// One stream at a time: the whole history from where this page stands, then live. A lost one is opened again.
async function follow() {
  if (following) following.abort();
  const stop = (following = new AbortController());
  let pause = 250;
  while (!stop.signal.aborted && sessionId) {
    try {
      const path = `${base}/session/${sessionId}/stream?startIndex=${next}`;
      const response = await fetch(path, { credentials: "same-origin", signal: stop.signal });
      if (!response.ok) {
        if (response.status === 404) forget();
        if (response.status < 500) return refused(response);
      } else {
        pause = 250;
        await read(response);
      }
    } catch (error) {
      if (stop.signal.aborted) return;
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, 8000);
  }
}

// A start is sent with a key, so that sending it again after a lost answer starts nothing twice.
async function start(message) {
  const key = unsent && unsent.message === message ? unsent.key : newKey();
  unsent = { message, key };
  working(true);
  for (let tries = 0; tries < 4; tries += 1) {
    try {
      const response = await post("/session", sessionId ? { sessionId, message } : { message }, key);
      if (response.status >= 500) throw new Error(response.statusText);
      if (!response.ok) {
        giveBack(message);
        return refused(response);
      }
      unsent = null;
      keep(response.headers.get("session-id"));
      response.body.cancel();
      return follow();
    } catch (error) {
      say("No connection; trying again.");
      await new Promise((resolve) => setTimeout(resolve, 500 * 2 ** tries));
    }
  }
  giveBack(message);
  say("The message could not be sent.");
}

function giveBack(message) {
  working(false);
  part("text").value = [message, part("text").value].filter(Boolean).join("\n");
}

// What is sent beside messages: its events come with the stream that is followed.
async function tell(path, body, key) {
  try {
    const response = await post(path, body, key);
    if (!response.ok) return refused(response);
    response.body.cancel();
  } catch (error) {
    say("No connection. Try again.");
  }
}

function answer(response) {
  return tell(`/session/${sessionId}`, { inputResponses: [response] }, newKey());
}

function forget() {
  sessionStorage.removeItem(kept);
  [sessionId, next, run] = ["", 0, null];
}

part("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = part("text").value.trim();
  if (!text || part("send").disabled) return;
  part("text").value = "";
  start(text);
});
part("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    part("form").requestSubmit();
  }
});
part("cancel").addEventListener("click", () => tell(`/session/${sessionId}/cancel`, {}));
part("fresh").addEventListener("click", () => {
  if (following) following.abort();
  forget();
  part("log").replaceChildren();
  over("A new session begins with your message.");
  part("text").focus();
});

async function begin() {
  working(false);
  const ticket = new URLSearchParams(location.hash.slice(1)).get("ticket");
  if (ticket) {
    // It opens nothing a second time, and needs not stay in the address.
    history.replaceState(null, "", location.pathname + location.search);
    const response = await post("/cookie", { ticket });
    if (!response.ok) return refused(response);
  }
  if (sessionId) return follow();
  part("text").focus();
}

begin();
