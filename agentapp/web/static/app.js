// What a browser with script gets on top of pages that work without it. The only HTML ever put into the page as
// HTML is a reply that the server has sanitised; everything else is text.
(() => {
  "use strict";

  const byId = (id) => document.getElementById(id);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const csrf = document.querySelector("meta[name=csrf-token]").content;
  const user = document.body.dataset.user || "";

  /* Small things every page has: times, menus, drafts that end with the login */

  const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
  const calendar = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric" });

  function localise(root) {
    for (const time of all("time[datetime]", root)) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const today = at.toDateString() === new Date().toDateString();
      time.textContent = today ? clock.format(at) : `${calendar.format(at)}, ${clock.format(at)}`;
      time.title = at.toLocaleString();
    }
  }

  function closeMenus(except) {
    for (const menu of all("details.menu[open]")) if (!menu.contains(except)) menu.open = false;
  }

  // Drafts are kept for this tab only, under the name of their owner: whoever signs in next never sees them.
  const DRAFT = "draft:";
  const drafts = {
    read: (key) => attempt(() => sessionStorage.getItem(key)) || "",
    keep: (key, text) => attempt(() => (text ? sessionStorage.setItem(key, text) : sessionStorage.removeItem(key))),
    forget: (unless) =>
      attempt(() =>
        Object.keys(sessionStorage)
          .filter((key) => key.startsWith(DRAFT) && !(unless && key.startsWith(unless)))
          .forEach((key) => sessionStorage.removeItem(key)),
      ),
  };

  function attempt(action) {
    try {
      return action();
    } catch {
      return null; // Storage is full or forbidden: the draft then lives as long as the page.
    }
  }

  localise(document);
  if (user) drafts.forget(`${DRAFT}${user}:`);
  document.addEventListener("click", (event) => closeMenus(event.target));
  document.addEventListener("submit", (event) => {
    if (event.target.matches("[data-logout]")) drafts.forget();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const menu = document.activeElement.closest("details.menu[open], details.chats-toggle[open]");
    closeMenus(null);
    if (menu) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
  for (const menu of all("details.rename")) {
    menu.addEventListener("toggle", () => menu.open && menu.querySelector("input[name=title]").select());
  }

  const main = document.querySelector("main.chat");
  if (!main) return;

  /* The chat page */

  const chatId = main.dataset.chatId;
  const draftKey = `${DRAFT}${user}:${chatId}`;
  const form = byId("composer");
  const box = byId("message");
  const key = form.elements.idempotency_key;
  const sendButton = byId("send");
  const log = byId("log");
  const turns = byId("turns");
  const scroller = byId("scroller");
  const jump = byId("jump");
  const limit = Number(form.dataset.max) || Infinity;
  let busy = false;
  let keyBelongsTo = null; // the text of a try that may have arrived: only the same text may use its key again

  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  const titled = (name) => (name ? name[0].toUpperCase() + name.slice(1) : "Assistant");

  function element(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function icon(name) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("class", "icon");
    svg.setAttribute("aria-hidden", "true");
    svg.append(document.createElementNS(svg.namespaceURI, "use"));
    svg.firstChild.setAttribute("href", `#i-${name}`);
    return svg;
  }

  function newKey() {
    if (crypto.randomUUID) return crypto.randomUUID();
    // Plain http on a name other than localhost has no randomUUID.
    return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  /* Saying what goes on */

  let reminder = 0;

  function say(words) {
    byId("status").textContent = words;
  }

  function setBusy(now) {
    busy = now;
    sendButton.disabled = now;
    log.setAttribute("aria-busy", String(now));
    clearInterval(reminder);
    if (!now) return;
    say("Answering");
    // A live region speaks only when its text changes.
    let odd = false;
    reminder = setInterval(() => say((odd = !odd) ? "Still answering" : "Answering goes on"), 20000);
  }

  function notice(words, { strong = "", link = null, danger = true } = {}) {
    const line = element("p", danger ? "notice danger" : "notice");
    line.setAttribute("role", danger ? "alert" : "status");
    const text = element("span");
    if (strong) text.append(element("strong", "", strong), " ");
    text.append(words);
    if (link) {
      const anchor = element("a", "", link.text);
      anchor.href = link.href;
      text.append(" ", anchor);
    }
    line.append(icon(danger ? "alert" : "info"), text);
    byId("notices").replaceChildren(line);
  }

  const clearNotice = () => byId("notices").replaceChildren();

  /* Limits: what the next message would be refused for, and how much of the budgets is used. The server knows. */

  let counting = 0;
  let asked = 0; // only the answer to the newest question is shown

  // True if there is a notice now.
  async function freshLimits({ notSent = false } = {}) {
    const mine = ++asked;
    try {
      const response = await fetch(`/chat/${chatId}/limits`, { headers: { Accept: "text/html" }, credentials: "same-origin" });
      const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
      if (mine !== asked || !fresh.getElementById("limits")) return false;
      if (notSent) fresh.querySelector("#limit p")?.prepend(element("strong", "", "Not sent."), " ");
      const focused = byId("limit").contains(document.activeElement);
      for (const id of ["limit", "meters"]) byId(id).replaceChildren(...fresh.getElementById(id).childNodes);
      if (focused) box.focus();
    } catch {
      return false; // What the page says then is older, and still the best there is.
    }
    countDown();
    return Boolean(byId("limit").children.length);
  }

  function clearLimit() {
    asked += 1;
    clearInterval(counting);
    byId("limit").replaceChildren();
  }

  function countDown() {
    clearInterval(counting);
    const wait = document.querySelector("#limit [data-seconds]");
    if (!wait) return;
    const end = Date.now() + wait.dataset.seconds * 1000;
    const digits = wait.querySelector(".clock");
    counting = setInterval(() => {
      const left = Math.ceil((end - Date.now()) / 1000);
      if (left > 0) {
        digits.textContent = timer(left);
        return;
      }
      clearInterval(counting);
      wait.textContent = "Try again now.";
      waitOver();
    }, 250);
  }

  async function waitOver() {
    await pause(Math.random() * 1000); // Whoever waited for the same thing would ask in the same moment.
    if (busy) return; // The end of the turn brings what is true then.
    await freshLimits();
    if (!busy && !byId("limit").children.length) say("You can send again.");
  }

  function timer(seconds) {
    const two = (number) => String(number).padStart(2, "0");
    const hours = Math.floor(seconds / 3600);
    const minutes = Math.floor(seconds / 60) % 60;
    return `${hours ? `${hours}:${two(minutes)}` : minutes}:${two(seconds % 60)}`;
  }

  function signedOut() {
    const back = encodeURIComponent(location.pathname);
    notice("Your draft is kept.", { strong: "You are signed out.", link: { text: "Sign in again", href: `/login?next=${back}` } });
  }

  /* Copying */

  function copyButton(label, text) {
    const button = element("button", "copy");
    const words = element("span", "", label);
    button.type = "button";
    button.append(icon("copy"), words);
    button.addEventListener("click", async () => {
      const done = await copied(text());
      words.textContent = done ? "Copied" : "Select and copy by hand";
      button.querySelector("use").setAttribute("href", done ? "#i-check" : "#i-alert");
      say(words.textContent);
      await pause(2000);
      words.textContent = label;
      button.querySelector("use").setAttribute("href", "#i-copy");
    });
    return button;
  }

  async function copied(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return false;
    }
  }

  function decorate(root) {
    for (const head of all(".code-head", root)) {
      if (!head.querySelector(".copy")) {
        head.append(copyButton("Copy", () => head.parentElement.querySelector("code").textContent));
        head.lastChild.setAttribute("aria-label", "Copy code");
      }
    }
    for (const article of all(".message", root)) {
      const mine = article.classList.contains("mine");
      const place = mine ? article : article.querySelector(".foot");
      if (all(":scope > .copy", place).length || (!mine && !article.dataset.text)) continue;
      const text = () => (mine ? article.querySelector(".bubble").textContent : article.dataset.text);
      const button = copyButton("Copy", text);
      button.setAttribute("aria-label", mine ? "Copy your message" : "Copy answer");
      if (mine) place.append(button);
      else place.prepend(button);
    }
  }

  /* Scrolling. The scroller is a reversed column, so 0 is its end and it follows by itself while it is there. */

  const atEnd = () => scroller.scrollTop > -60;
  const toEnd = () => (scroller.scrollTop = 0);
  const showJump = () => (jump.hidden = atEnd());

  scroller.addEventListener("scroll", showJump, { passive: true });
  jump.addEventListener("click", () => {
    toEnd();
    scroller.focus({ preventScroll: true });
  });
  let height = log.offsetHeight;
  new ResizeObserver(() => {
    // Browsers without scroll anchoring would move the text under the eyes of somebody who reads further up.
    const grown = log.offsetHeight - height;
    height += grown;
    if (!atEnd() && !CSS.supports("overflow-anchor", "auto")) scroller.scrollTop -= grown;
    showJump();
  }).observe(log);

  /* One turn as it happens */

  class TurnView {
    constructor(text) {
      this.root = byId("turn-template").content.firstElementChild.cloneNode(true);
      this.part = (name) => this.root.querySelector(`.${name}`);
      this.tools = new Map();
      this.written = document.createTextNode("");
      this.part("bubble").textContent = text;
      this.part("body").append(this.written);
      this.part("who").hidden = true;
      this.doing("Sending…");
      byId("latest")?.removeAttribute("id");
      this.part("theirs").id = "latest";
      byId("hello")?.setAttribute("hidden", "");
      turns.append(this.root);
      toEnd();
    }

    remove() {
      this.root.remove();
      turns.lastElementChild?.querySelector(".theirs").setAttribute("id", "latest");
      if (!turns.children.length) byId("hello")?.removeAttribute("hidden");
    }

    doing(words) {
      this.part("working").hidden = !words;
      this.part("doing").textContent = words;
      if (words) this.part("body").classList.remove("streaming");
    }

    agent(name) {
      this.part("who").hidden = false;
      this.part("who").textContent = titled(name);
    }

    step(content, className) {
      const item = element("li", className);
      item.append(...content);
      this.part("steps").hidden = false;
      this.part("steps").append(item);
    }

    turn_started({ turn_id }) {
      this.root.dataset.turn = turn_id;
      this.doing("Thinking…");
    }

    agent_started({ agent }) {
      this.agent(agent);
      this.doing(`${titled(agent)} is thinking…`);
    }

    agent_thinking({ agent }) {
      this.doing(`${titled(agent)} is thinking…`);
    }

    handed_over({ from, to, task }) {
      const words = element("span");
      words.append(element("strong", "", `${titled(from)} → ${titled(to)}`));
      if (task) words.append(" ", element("span", "task", task));
      this.step([icon("handed"), words], "step");
      this.agent(to);
      this.doing(`${titled(to)} is thinking…`);
    }

    tool_executing({ call_id, name, input }) {
      const details = element("details", "tool");
      const summary = element("summary");
      const io = element("div", "io");
      summary.append(element("span", "mark"), element("code", "", name), " ", element("span", "state"), icon("chevron"));
      io.append(element("h3", "", "Input"), block(input), element("h3", "", "Output"), block("…"));
      details.append(summary, io);
      this.step([details], "");
      this.tools.set(call_id, details);
      this.tool(details, "running");
      this.doing("");
    }

    tool_completed({ call_id, output, failed, limited }) {
      const details = this.tools.get(call_id);
      if (!details) return;
      this.tool(details, limited ? "limited" : failed ? "failed" : "done");
      details.querySelector(".io").lastChild.textContent = written(output);
    }

    tool(details, state) {
      details.dataset.state = state;
      details.querySelector(".state").textContent = state === "limited" ? "limit reached" : state;
    }

    text({ text }) {
      this.doing("");
      const body = this.part("body");
      body.classList.add("streaming");
      this.written.appendData(text);
    }

    turn_completed({ status, reply, html, usage, error, agent, request_id }) {
      this.doing("");
      this.root.dataset.status = status;
      const body = this.part("body");
      body.classList.remove("streaming");
      if (html) {
        body.classList.remove("as-written");
        body.innerHTML = html;
      }
      if (agent) this.agent(agent);
      if (reply) this.part("theirs").dataset.text = reply;
      for (const details of this.tools.values()) if (details.dataset.state === "running") this.tool(details, "failed");
      if (status !== "completed") this.outcome(status, error, request_id || this.requestId);
      const now = element("time");
      now.dateTime = new Date().toISOString();
      const foot = this.part("foot");
      foot.prepend(now);
      foot.hidden = false;
      if (usage) {
        const tokens = (usage.input_tokens || 0) + (usage.output_tokens || 0);
        this.part("usage").textContent = `${tokens.toLocaleString("en")} tokens`;
      }
      localise(foot);
      decorate(this.root);
    }

    outcome(status, error, requestId) {
      const failed = status === "failed";
      const words = { stopped: "Stopped by you.", interrupted: "The server restarted while answering." };
      const line = element("p", failed ? "notice danger" : "notice");
      const text = element("span", "", words[status] || error?.message || "No answer came.");
      if (failed) line.setAttribute("role", "alert");
      if (requestId) {
        const small = element("small", "", "Request id ");
        small.append(element("code", "", requestId));
        text.append(" ", small);
      }
      line.append(icon(failed ? "alert" : "info"), text);
      this.part("outcome").replaceChildren(line);
    }
  }

  const EVENTS = new Set([
    "turn_started",
    "agent_started",
    "agent_thinking",
    "handed_over",
    "tool_executing",
    "tool_completed",
    "text",
    "turn_completed",
  ]);

  const written = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "");

  function block(value) {
    const pre = element("pre", "", written(value));
    pre.tabIndex = 0;
    return pre;
  }

  /* Events as they come over the wire */

  async function* eventsOf(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    let name = "";
    let data = [];
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      // A line may end in CR, LF or both, and both may arrive in different chunks.
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield { name: name || "message", data: JSON.parse(data.join("\n")) };
          name = "";
          data = [];
          continue;
        }
        const colon = line.indexOf(":");
        const field = colon < 0 ? line : line.slice(0, colon);
        const content = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (field === "event") name = content;
        else if (field === "data") data.push(content);
      }
    }
  }

  /* Sending */

  async function send(text) {
    if (busy || !text.trim()) return;
    if (text.length > limit) {
      notice(`A message may have ${limit.toLocaleString("en")} characters; this one has ${text.length.toLocaleString("en")}.`, { strong: "Too long." });
      return;
    }
    if (keyBelongsTo !== null && keyBelongsTo !== text) key.value = newKey();
    keyBelongsTo = text;
    clearNotice();
    setBusy(true);
    const view = new TurnView(text);
    if (box.value.trim() === text.trim()) write("");
    drafts.keep(draftKey, text);

    const refused = (tell) => {
      view.remove();
      write([text, box.value].filter(Boolean).join("\n\n"));
      setBusy(false);
      say("");
      tell();
    };

    let response;
    try {
      response = await fetch(form.action, {
        method: "POST",
        headers: { Accept: "text/event-stream", "X-CSRFToken": csrf },
        body: new URLSearchParams({ message: text, idempotency_key: key.value }),
        credentials: "same-origin",
      });
    } catch {
      refused(() => notice("Your message is kept. Check the connection, then send it again.", { strong: "The server cannot be reached." }));
      return;
    }
    if (!response.ok) {
      const problem = await response.json().catch(() => ({}));
      refused(() => explain(response.status, problem));
      return;
    }
    accepted();
    view.requestId = response.headers.get("X-Request-ID") || "";
    const streams = (response.headers.get("Content-Type") || "").startsWith("text/event-stream");
    if (!streams || !(await follow(view, response.body))) await catchUp(view);
  }

  function accepted() {
    key.value = newKey();
    keyBelongsTo = null;
    drafts.keep(draftKey, box.value);
    clearLimit();
  }

  async function explain(status, problem) {
    if (status === 401) {
      signedOut();
      return;
    }
    if (problem.code === "idempotency-mismatch") key.value = newKey();
    if (problem.scope && (await freshLimits({ notSent: true }))) return;
    const reload = problem.code === "csrf" ? { text: "Reload the page", href: location.pathname } : null;
    notice(problem.detail || "Your message is kept. Please try again.", { strong: problem.title || `The server answered ${status}.`, link: reload });
  }

  // True once the turn has ended; false when the stream broke off before that.
  async function follow(view, body) {
    try {
      for await (const { name, data } of eventsOf(body)) {
        if (EVENTS.has(name)) view[name](data);
        if (name === "turn_completed") {
          finish(data);
          return true;
        }
      }
    } catch (error) {
      console.warn("The stream broke off", error);
    }
    return false;
  }

  function finish({ status, title }) {
    if (title) rename(title);
    clearNotice();
    setBusy(false);
    say(status === "completed" ? "Answer complete" : status === "failed" ? "" : "The answer has ended");
    freshLimits();
  }

  function rename(title) {
    byId("chat-title").textContent = title;
    document.title = `${title} · agentapp`;
    const field = byId("chat-title-field");
    if (document.activeElement !== field) field.value = title;
    for (const link of all("#chat-groups [data-chat]")) if (link.dataset.chat === chatId) link.textContent = title;
  }

  /* Following a turn that this page does not stream: read the page again until the turn has ended */

  async function catchUp(view) {
    setBusy(true);
    view?.doing("Reconnecting…");
    for (let wait = 2000; ; ) {
      await pause(wait);
      const page = await freshPage();
      if (page === "signed out") {
        setBusy(false);
        signedOut();
        return;
      }
      if (!page) {
        wait = Math.min(wait * 1.5, 10000);
        notice("The answer goes on without you and will be here.", { strong: "Reconnecting…", danger: false });
        continue;
      }
      wait = 2000;
      clearNotice();
      takeOver(page);
      if (page.querySelector("main.chat").dataset.running !== "true") {
        finish({ status: turns.lastElementChild?.dataset.status, title: page.getElementById("chat-title").textContent });
        return;
      }
    }
  }

  async function freshPage() {
    try {
      const response = await fetch(location.pathname, { headers: { Accept: "text/html" }, credentials: "same-origin" });
      if (response.status === 401 || new URL(response.url).pathname === "/login") return "signed out";
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      return page.querySelector("main.chat") ? page : null;
    } catch {
      return null;
    }
  }

  function takeOver(page) {
    const known = new Map(all(".turn", turns).map((turn) => [turn.dataset.turn, turn]));
    const fresh = all("#turns > .turn", page).map((turn) => {
      const old = known.get(turn.dataset.turn);
      const settled = old && old.dataset.status === turn.dataset.status && turn.dataset.status !== "running";
      const read = old && turn.dataset.status === "running" && old.contains(document.activeElement);
      if (settled || read) return old;
      const opened = old ? all("details", old).map((details) => details.open) : [];
      const made = document.importNode(turn, true);
      all("details", made).forEach((details, at) => (details.open = opened[at] || false));
      return made;
    });
    for (const turn of fresh) turn.querySelector(".theirs").removeAttribute("id");
    fresh.at(-1)?.querySelector(".theirs").setAttribute("id", "latest");
    // Only what changed is touched, so that a selection elsewhere stays.
    for (const [at, turn] of fresh.entries()) {
      if (turns.children[at] !== turn) turns.insertBefore(turn, turns.children[at] || null);
    }
    while (turns.children.length > fresh.length) turns.lastElementChild.remove();
    if (fresh.length) byId("hello")?.remove();
    const groups = page.getElementById("chat-groups");
    if (groups && !byId("chat-groups").contains(document.activeElement)) {
      byId("chat-groups").replaceChildren(...document.importNode(groups, true).childNodes);
    }
    localise(turns);
    decorate(turns);
  }

  /* Composer */

  function write(text) {
    box.value = text;
    measure();
  }

  function measure() {
    const left = limit - box.value.length;
    const counter = byId("counter");
    counter.textContent = left < 0 ? `${(-left).toLocaleString("en")} characters too many` : left < limit / 10 ? `${left.toLocaleString("en")} characters left` : "";
    counter.classList.toggle("over", left < 0);
    if (!CSS.supports("field-sizing", "content")) {
      box.style.height = "auto";
      box.style.height = `${box.scrollHeight}px`;
    }
  }

  const touch = matchMedia("(hover: none) and (pointer: coarse)");

  box.addEventListener("input", () => {
    measure();
    drafts.keep(draftKey, box.value);
  });
  box.addEventListener("keydown", (event) => {
    // keyCode 229 is how Safari says that the Enter ended a composition.
    const plain = event.key === "Enter" && !event.shiftKey && !event.ctrlKey && !event.altKey && !event.metaKey;
    if (!plain || event.isComposing || event.keyCode === 229 || touch.matches) return;
    event.preventDefault();
    send(box.value);
  });
  document.addEventListener("submit", (event) => {
    if (event.target === form) {
      event.preventDefault();
      send(box.value);
    } else if (event.target.matches("[data-example]")) {
      event.preventDefault();
      send(event.target.elements.message.value);
    }
  });

  const keys = byId("keys");
  for (const button of all("[data-keys]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      closeMenus(null);
      keys.showModal();
    });
  }
  keys.addEventListener("click", (event) => event.target === keys && keys.close());
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (typing || keys.open || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      box.focus();
    } else if (event.key === "?") {
      event.preventDefault();
      keys.showModal();
    }
  });

  if (!touch.matches) byId("tip").textContent = "Enter to send, Shift + Enter for a new line.";
  decorate(turns);
  countDown();
  box.disabled = false;
  write(box.value || drafts.read(draftKey));
  if (main.dataset.running === "true") catchUp(null);
  else {
    sendButton.disabled = false;
    if (!touch.matches && !byId("notices").children.length) box.focus({ preventScroll: true });
  }
})();
