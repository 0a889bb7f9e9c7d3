// The pages work without script; this adds to them. The only HTML that is put into the page as HTML is a reply that
// the server has sanitised. Everything else is put in as text.
(() => {
  "use strict";

  const byId = (id) => document.getElementById(id);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const csrf = document.querySelector("meta[name=csrf-token]").content;
  const user = document.body.dataset.user || "";

  /* What every page has: times, menus, drafts that are deleted when their user signs out */

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
    const open = all("details.menu[open]").filter((menu) => !menu.contains(except));
    for (const menu of open) menu.open = false;
    return open;
  }

  // Drafts are kept for this tab only, under the name of their user, so that another user who signs in next never
  // sees them.
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
      return null; // Storage is full or forbidden. The draft is then kept only as long as the page.
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
    const focused = document.activeElement;
    const closed = closeMenus(null);
    for (const list of all("details.chats-toggle[open]")) {
      list.open = false;
      closed.push(list);
    }
    closed.find((menu) => menu.contains(focused))?.querySelector("summary").focus();
    if (closed.length) event.preventDefault(); // So that this key press does nothing else.
  });
  for (const menu of all("details.rename")) {
    menu.addEventListener("toggle", () => menu.open && menu.querySelector("input[name=title]").select());
  }

  const main = document.querySelector("main.chat");
  if (!main) return;

  /* The chat page */

  const chatId = main.dataset.chatId;
  const here = `/chat/${chatId}`;
  const form = byId("composer");
  const box = byId("message");
  const key = form.elements.idempotency_key;
  const sendButton = byId("send");
  const stopButton = byId("stop");
  const log = byId("log");
  const turns = byId("turns");
  const scroller = byId("scroller");
  const jump = byId("jump");
  const limit = Number(form.dataset.max) || Infinity;
  const touch = matchMedia("(hover: none) and (pointer: coarse)");
  let following = null; // the turn that this page sends or follows; nothing else is sent until it ends
  let editing = form.elements.replaces?.value || ""; // the turn that the message in the box is to replace
  let address = editing ? `${here}?version=${editing}` : location.pathname + location.search; // of what is shown
  let keyBelongsTo = null; // the text that may have reached the server with this key: no other text may use the key

  const draftKey = () => `${DRAFT}${user}:${chatId}${editing && `:${editing}`}`;
  const onPage = (id) => all(":scope > .turn", turns).find((turn) => turn.dataset.turn === id);
  // A long chat is shown in pages. On the last one, the last turn is the end of the branch.
  const showsEnd = () => !byId("later").children.length;
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
    // There is no randomUUID on plain http, except on localhost.
    return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  /* Telling the user what goes on */

  const DOUBLE_CLICK_MS = 500; // the second click would hit the button that has just replaced the first one
  let reminder = 0;
  let swapped = -DOUBLE_CLICK_MS; // on a page that was just loaded nothing has been swapped

  function say(words) {
    byId("status").textContent = words;
  }

  function showBusy() {
    const busy = Boolean(following);
    const focused = document.activeElement;
    main.dataset.running = String(busy);
    log.setAttribute("aria-busy", String(busy));
    if (sendButton.hidden !== busy) swapped = performance.now();
    sendButton.hidden = busy;
    byId("stopping").hidden = !busy;
    showStop("Stop");
    // The button that was pressed is hidden now, so the focus has to move.
    if (focused === (busy ? sendButton : stopButton)) moveFocus();
    clearInterval(reminder);
    if (!busy) return;
    say("Answering");
    // A screen reader reads a live region out only when its text changes.
    let odd = false;
    reminder = setInterval(() => say((odd = !odd) ? "Still answering" : "Answering goes on"), 20000);
  }

  // Not to the box on a phone: that would open the keyboard.
  function moveFocus() {
    (touch.matches ? scroller : box).focus({ preventScroll: true });
  }

  function showStop(words) {
    stopButton.querySelector("span").textContent = words;
    stopButton.setAttribute("aria-disabled", String(words !== "Stop"));
  }

  function notice(words, { strong = "", link = null, danger = true } = {}) {
    byId("notices").replaceChildren(makeNotice(words, { strong, link, danger }));
  }

  function makeNotice(words, { strong = "", link = null, danger = false } = {}) {
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
    return line;
  }

  const clearNotice = () => byId("notices").replaceChildren();

  /* Limits: why the next message would be refused, and how much of the budgets is used. The server is asked. */

  let counting = 0;
  let asked = 0; // counts the requests, because only the answer to the newest one is shown

  // Returns whether there is a notice now.
  async function freshLimits({ notSent = false } = {}) {
    const mine = ++asked;
    try {
      const response = await fetch(`${here}/limits`, { headers: { Accept: "text/html" }, credentials: "same-origin" });
      const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
      if (mine !== asked || !fresh.getElementById("limits")) return false;
      if (notSent) fresh.querySelector("#limit p")?.prepend(element("strong", "", "Not sent."), " ");
      const focused = byId("limit").contains(document.activeElement);
      for (const id of ["limit", "meters"]) byId(id).replaceChildren(...fresh.getElementById(id).childNodes);
      if (focused) box.focus();
    } catch {
      return false; // The page keeps showing what it knew before.
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
    await pause(Math.random() * 1000); // Otherwise all who wait for the same limit would ask at the same moment.
    if (following) return; // When the turn ends, the limits are asked for anyway.
    await freshLimits();
    if (!following && !byId("limit").children.length) say("You can send again.");
  }

  function timer(seconds) {
    const two = (number) => String(number).padStart(2, "0");
    const hours = Math.floor(seconds / 3600);
    const minutes = Math.floor(seconds / 60) % 60;
    return `${hours ? `${hours}:${two(minutes)}` : minutes}:${two(seconds % 60)}`;
  }

  function signedOut() {
    line?.abort();
    letGo();
    const back = encodeURIComponent(location.pathname + location.search);
    notice("Your draft is kept.", { strong: "You are signed out.", link: { text: "Sign in again", href: `/login?next=${back}` } });
  }

  /* Copying */

  function copyButton(label, text) {
    const button = element("button", "act copy");
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
      const place = article.querySelector(mine ? ".acts" : ".foot");
      if (all(":scope > .copy", place).length || (!mine && !article.dataset.text)) continue;
      const text = () => (mine ? article.querySelector(".bubble").textContent : article.dataset.text);
      const button = copyButton("Copy", text);
      button.setAttribute("aria-label", mine ? "Copy your message" : "Copy answer");
      place.prepend(button);
    }
  }

  /* Scrolling. The scroller is a reversed column: position 0 is its end, and there it follows new text by itself. */

  const atEnd = () => scroller.scrollTop > -60;
  const toEnd = () => (scroller.scrollTop = 0);
  const showJump = () => (jump.hidden = atEnd() || !showsEnd());

  scroller.addEventListener("scroll", showJump, { passive: true });
  jump.addEventListener("click", () => {
    toEnd();
    scroller.focus({ preventScroll: true });
  });
  let height = log.offsetHeight;
  new ResizeObserver(() => {
    // Without scroll anchoring, a browser would move the text that somebody is reading further up.
    const grown = log.offsetHeight - height;
    height += grown;
    if (!atEnd() && !CSS.supports("overflow-anchor", "auto")) scroller.scrollTop -= grown;
    showJump();
  }).observe(log);

  /* One turn, shown while it happens */

  class TurnView {
    constructor(root) {
      this.root = root;
      this.replaced = [];
      this.tools = new Map();
      this.written = document.createTextNode("");
    }

    // Adds a turn at the end of the page. It takes the place of the turn `replaces`, if given, and of all after it.
    static sending(text, replaces = "") {
      const view = TurnView.apart();
      const old = replaces && onPage(replaces);
      view.replaced = old ? [...turns.children].slice([...turns.children].indexOf(old)) : [];
      view.part("bubble").textContent = text;
      view.part("who").hidden = true;
      view.doing("Sending…");
      for (const turn of view.replaced) turn.remove();
      turns.append(view.root);
      byId("hello")?.setAttribute("hidden", "");
      markLatest();
      toEnd();
      return view;
    }

    // A view that is not on the page, for a turn in a version that is not shown.
    static apart() {
      return new TurnView(byId("turn-template").content.firstElementChild.cloneNode(true));
    }

    undo() {
      this.root.remove();
      turns.append(...this.replaced);
      if (!turns.children.length) byId("hello")?.removeAttribute("hidden");
      markLatest();
    }

    part(name) {
      return this.root.querySelector(`.${name}`);
    }

    still() {
      this.doing("");
      this.part("body").classList.remove("streaming");
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

    // Clears what was shown of this turn so far: the events that follow tell all of it again.
    turn_started({ turn_id, message }) {
      this.root.dataset.turn = turn_id;
      this.root.id = `turn-${turn_id}`;
      this.tools = new Map();
      this.written = document.createTextNode("");
      this.part("bubble").textContent = message;
      this.part("edit").href = `${here}?edit=${turn_id}#message`;
      this.part("steps").replaceChildren();
      this.part("steps").hidden = true;
      this.part("body").replaceChildren(this.written);
      this.part("body").classList.add("as-written");
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
      this.part("body").classList.add("streaming");
      this.written.appendData(text);
    }

    // What the server has stored replaces what was shown so far.
    turn_completed({ status, reply, html, usage, error, agent, request_id }) {
      this.still();
      this.root.dataset.status = status;
      const body = this.part("body");
      body.classList.toggle("as-written", !html);
      if (html) body.innerHTML = html;
      else body.textContent = reply;
      if (agent) this.agent(agent);
      if (reply) this.part("theirs").dataset.text = reply;
      for (const details of this.tools.values()) {
        if (details.dataset.state === "running") this.tool(details, status === "stopped" ? "stopped" : "failed");
      }
      if (status === "completed") this.part("choices").append(this.again("Regenerate"));
      else this.outcome(status, error, request_id);
      this.foot(usage);
      decorate(this.root);
    }

    foot(usage) {
      const facts = this.part("facts");
      if (!facts.querySelector("time")) {
        const now = element("time");
        now.dateTime = new Date().toISOString();
        facts.prepend(now, " ");
      }
      if (usage) {
        const tokens = (usage.input_tokens || 0) + (usage.output_tokens || 0);
        const cached = usage.cache_read_tokens ? `, ${usage.cache_read_tokens.toLocaleString("en")} cached` : "";
        this.part("usage").textContent = `${tokens.toLocaleString("en")} tokens${cached}`;
      }
      this.part("foot").hidden = false;
      localise(facts);
    }

    again(label) {
      const made = byId("again-template").content.firstElementChild.cloneNode(true);
      made.action = `${here}/turns/${this.root.dataset.turn}/retry`;
      made.elements.idempotency_key.value = newKey();
      made.querySelector("span").textContent = label;
      return made;
    }

    outcome(status, error, requestId) {
      const failed = status === "failed";
      const words = { stopped: "Stopped.", interrupted: "The server restarted while answering." };
      const line = element("div", failed ? "notice danger" : "notice");
      const text = element("p", "", words[status] || error?.message || "No answer came.");
      if (failed) line.setAttribute("role", "alert");
      if (requestId && status !== "stopped") {
        const small = element("small", "", "Request id ");
        small.append(element("code", "", requestId));
        text.append(" ", small);
      }
      line.append(icon(failed ? "alert" : "info"), text);
      if (error?.can_retry !== false) line.append(this.again("Retry"));
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

  function markLatest() {
    byId("latest")?.removeAttribute("id");
    turns.lastElementChild?.querySelector(".theirs").setAttribute("id", "latest");
  }

  const written = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "");

  function block(value) {
    const pre = element("pre", "", written(value));
    pre.tabIndex = 0;
    return pre;
  }

  /* Reading events from a response */

  // `later` is told how many milliseconds to wait before connecting again, if the server asks for that.
  async function* eventsOf(body, heard, later) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    let event = { id: 0, name: "message", data: [] };
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      heard();
      // A line may end in CR, LF or both, and the two may arrive in different chunks.
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (event.data.length) yield { ...event, data: JSON.parse(event.data.join("\n")) };
          event = { id: 0, name: "message", data: [] };
          continue;
        }
        const [, field, content] = line.match(/^([^:]*)(?:: ?(.*))?$/);
        if (field === "id") event.id = Number(content);
        else if (field === "event") event.name = content;
        else if (field === "data") event.data.push(content ?? "");
        else if (field === "retry") later(Number(content) || 0);
      }
    }
  }

  /* Following a turn to its end, with as many connections as that needs */

  const MAX_SILENCE_MS = 25000; // then the connection is dead: the server sends something every 10 s
  const UNNOTICED_BREAK_MS = 700; // a break that is shorter than this is not shown
  const HIDDEN_TAB_MS = 30000; // then a hidden tab closes its connection, because a browser has only a few for one server
  let line = null; // aborts the present connection
  let wake = () => {}; // ends the present wait for a retry
  let broken = 0;

  class Following {
    constructor(view, id = "") {
      this.view = view;
      this.id = id;
      this.last = 0; // the number of the last event seen
      this.pause = 0; // milliseconds to wait before connecting again, because the server has asked for that
      this.ours = !id; // sent by this page, which then tells the other tabs
      this.stopping = false;
    }
  }

  function connect(url, options) {
    line = new AbortController();
    const headers = { Accept: "text/event-stream", ...options.headers };
    return fetch(url, { ...options, headers, credentials: "same-origin", signal: line.signal });
  }

  const eventsAfter = (turn) => connect(`${here}/turns/${turn.id}/events`, { headers: { "Last-Event-ID": String(turn.last) } });

  // While this waits, the page may stop following the turn: the user is signed out, the chat is deleted, or the
  // server shows the turn in another state. So `following` is checked after every wait.
  async function follow(turn, response) {
    for (let tries = 0; ; tries += 1) {
      if (response?.ok) {
        lost(false);
        const before = turn.last;
        const end = await read(turn, response);
        if (end) return finish(turn, end);
        if (turn.last > before) tries = 0;
      }
      const asked = turn.pause * (1 + Math.random() / 2);
      turn.pause = 0;
      if (turn !== following) return;
      if (response?.status === 401) return signedOut();
      if (!asked) lost(true); // A newer stream of this user has taken the place of this one: nothing is wrong.
      if (response?.status === 404 || !turn.id) await startOver(turn);
      if (turn !== following) return;
      const bidden = Number(response?.headers.get("Retry-After")) * 1000 || 0;
      await waitToRetry(asked || Math.max(bidden, Math.min(500 * 2 ** tries, 5000) * (0.5 + Math.random() / 2)));
      if (turn !== following) return;
      response = await eventsAfter(turn).catch(() => null);
    }
  }

  // Returns how the turn ended, or null if the stream broke off before that.
  async function read(turn, response) {
    let silence = 0;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout((connection) => connection.abort(), MAX_SILENCE_MS, line);
    };
    try {
      heard();
      for await (const { id, name, data } of eventsOf(response.body, heard, (ms) => (turn.pause = ms))) {
        const ended = name === "turn_completed";
        if (id <= turn.last && !ended) continue;
        turn.last = id;
        if (name === "turn_started") started(turn, data);
        if (EVENTS.has(name)) turn.view[name](data);
        if (ended) return data;
      }
    } catch (error) {
      console.info("The stream broke off", error);
    } finally {
      clearTimeout(silence);
    }
    return null;
  }

  function started(turn, { turn_id }) {
    turn.id = turn_id;
    main.dataset.runningTurn = turn_id;
    if (turn.ours) tabs?.postMessage(turn_id);
    if (turn.stopping) askToStop(turn);
  }

  function finish(turn, { status, title }) {
    letGo();
    if (title) rename(title);
    clearNotice();
    say({ completed: "Answer complete", failed: "", stopped: "Stopped" }[status] ?? "The answer has ended");
    freshLimits();
    // Only the server knows the other versions, and what another tab has sent meanwhile.
    if (turn.view.replaced.length || !turn.view.root.isConnected || news) refresh();
  }

  function gone() {
    line?.abort();
    letGo();
    notice("It was deleted.", { strong: "This chat is gone.", link: { text: "Go to your chats", href: "/chat" } });
  }

  function letGo() {
    following?.view.still();
    following = null;
    main.dataset.runningTurn = "";
    lost(false);
    showBusy();
    say("");
  }

  function lost(now) {
    if (!now) {
      clearTimeout(broken);
      broken = 0;
      byId("connection").replaceChildren();
    } else if (!broken) {
      const words = makeNotice("The answer goes on without you and will be here.", { strong: "Reconnecting…" });
      words.removeAttribute("role"); // The region around it has the role already.
      broken = setTimeout(() => byId("connection").replaceChildren(words), UNNOTICED_BREAK_MS);
    }
  }

  function waitToRetry(ms) {
    return new Promise((done) => {
      wake = done;
      if (!document.hidden) setTimeout(done, ms);
    });
  }

  function rename(title) {
    if (title === byId("chat-title").textContent) return;
    byId("chat-title").textContent = title;
    document.title = `${title} · agentapp`;
    const field = byId("chat-title-field");
    if (document.activeElement !== field) field.value = title;
    for (const link of all("#chat-groups [data-chat]")) if (link.dataset.chat === chatId) link.textContent = title;
  }

  /* Stopping */

  function stop() {
    if (!following || following.stopping) return;
    following.stopping = true;
    following.view.doing("Stopping…");
    showStop("Stopping…");
    say("Stopping");
    if (following.id) askToStop(following);
  }

  // The page learns from the stream that the turn has ended, as always.
  async function askToStop(turn) {
    const headers = { Accept: "application/json", "X-CSRFToken": csrf };
    for (; turn === following; await pause(1000)) {
      const response = await fetch(`${here}/turns/${turn.id}/stop`, { method: "POST", headers, credentials: "same-origin" }).catch(() => null);
      if (response?.ok) return;
      if (!response || response.status >= 500) continue;
      turn.stopping = false;
      showStop("Stop");
      explain(response.status, await response.json().catch(() => ({})));
      return;
    }
  }

  /* Taking over what the server shows now: turns that other tabs have sent, and other versions */

  const REFRESH_EVERY_MS = 3000; // at most this often, the server is asked because the user came back to the page
  const tabs = "BroadcastChannel" in window ? new BroadcastChannel(`agentapp:${user}:${chatId}`) : null;
  let refreshed = Date.now();
  let looking = 0;
  let news = false; // another tab has sent something, and this one has not looked yet

  // Returns null if the page cannot be loaded. If the user is signed out or the chat deleted, a notice says so.
  async function freshPage() {
    refreshed = Date.now();
    try {
      const response = await fetch(address, { headers: { Accept: "text/html" }, credentials: "same-origin" });
      if (response.status === 401 || new URL(response.url).pathname === "/login") signedOut();
      else if (response.status === 404) gone();
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      return page.querySelector("main.chat") ? page : null;
    } catch {
      return null;
    }
  }

  async function refresh() {
    if (following) return;
    news = false;
    const page = await freshPage();
    if (page && !following) show(page);
  }

  // The turn cannot be followed: show what the server shows instead.
  async function startOver(turn) {
    const page = await freshPage();
    if (!page || turn !== following) return;
    if (turn.id && turn.id === page.querySelector("main.chat").dataset.runningTurn) return;
    letGo();
    show(page);
    if (!following) freshLimits();
  }

  function show(page) {
    takeOver(page);
    rename(page.getElementById("chat-title").textContent);
    main.dataset.runningTurn = page.querySelector("main.chat").dataset.runningTurn;
    main.dataset.end = page.querySelector("main.chat").dataset.end;
    for (const id of ["elsewhere", "chat-groups", "later"]) renew(byId(id), page.getElementById(id), (part) => part.innerHTML);
    join();
  }

  // Changes nothing that is the same: a screen reader would read it out again, and a click that has begun would be
  // lost.
  function renew(old, fresh, essence) {
    if (essence(old) === essence(fresh) || old.contains(document.activeElement)) return;
    old.replaceChildren(...document.importNode(fresh, true).childNodes);
  }

  async function join() {
    const id = main.dataset.runningTurn;
    if (!id || following) return;
    const root = onPage(id);
    const turn = new Following(root ? new TurnView(root) : TurnView.apart(), id);
    following = turn;
    showBusy();
    follow(turn, await eventsAfter(turn).catch(() => null));
  }

  function takeOver(page) {
    const fresh = all("#turns > .turn", page).map((turn) => {
      const old = onPage(turn.dataset.turn);
      if (old && old.dataset.status === turn.dataset.status && turn.dataset.status !== "running") return kept(old, turn);
      const opened = old ? all("details", old).map((details) => details.open) : [];
      const made = document.importNode(turn, true);
      all("details", made).forEach((details, at) => (details.open = opened[at] || false));
      return made;
    });
    // What comes before a turn never changes. If this page shows more of that than the fresh one, it stays.
    const above = Math.max(0, [...turns.children].indexOf(fresh[0]));
    if (!above) renew(byId("earlier"), page.getElementById("earlier"), (part) => part.innerHTML);
    // Turns are moved only if they have to be, so that a selection in another turn stays.
    for (const [at, turn] of fresh.entries()) {
      if (turns.children[above + at] !== turn) turns.insertBefore(turn, turns.children[above + at] || null);
    }
    while (turns.children.length > above + fresh.length) turns.lastElementChild.remove();
    if (fresh.length) byId("hello")?.remove();
    markLatest();
    localise(turns);
    decorate(turns);
  }

  // A turn that has ended does not change, but there may be a new version of it, or a turn after it.
  function kept(old, turn) {
    const essence = (choices) => [choices.querySelector(".versions")?.outerHTML, Boolean(choices.querySelector(".again"))].join();
    renew(old.querySelector(".choices"), turn.querySelector(".choices"), essence);
    return old;
  }

  function lookAgain() {
    wake();
    clearTimeout(looking);
    if (!document.hidden) looking = setTimeout(refresh, news ? 0 : Math.max(250, refreshed + REFRESH_EVERY_MS - Date.now()));
  }

  let hiding = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(() => following?.id && line.abort(), HIDDEN_TAB_MS);
    else lookAgain();
  });
  addEventListener("focus", lookAgain);
  addEventListener("pageshow", (event) => event.persisted && lookAgain());
  addEventListener("online", lookAgain);
  tabs?.addEventListener("message", () => {
    news = true;
    lookAgain();
  });

  /* Sending, and sending again */

  async function send(text) {
    if (following || !text.trim()) return;
    if (text.length > limit) {
      notice(`A message may have ${limit.toLocaleString("en")} characters; this one has ${text.length.toLocaleString("en")}.`, { strong: "Too long." });
      return;
    }
    if (keyBelongsTo !== null && keyBelongsTo !== text) key.value = newKey();
    keyBelongsTo = text;
    const place = editing ? { replaces: editing } : { after: (showsEnd() ? turns.lastElementChild?.dataset.turn : main.dataset.end) ?? "" };
    const view = TurnView.sending(text, editing);
    if (box.value.trim() === text.trim()) write("");
    drafts.keep(draftKey(), text);
    const refusal = await begin(view, form.action, { message: text, idempotency_key: key.value, ...place }, () => {
      key.value = newKey();
      keyBelongsTo = null;
      if (editing) stopEditing(box.value);
      else drafts.keep(draftKey(), box.value);
    });
    if (!refusal) return;
    write([text, box.value].filter(Boolean).join("\n\n"));
    if (refusal.problem.code === "idempotency-mismatch") key.value = newKey();
    explain(refusal.status, refusal.problem);
  }

  // Asks for another version of a turn, with the same text.
  async function again(wanted) {
    if (following) return;
    if (editing) leaveEditing();
    const old = wanted.closest(".turn");
    const view = TurnView.sending(old.querySelector(".bubble").textContent, old.dataset.turn);
    moveFocus();
    const refusal = await begin(view, wanted.action, { idempotency_key: wanted.elements.idempotency_key.value });
    if (refusal) explain(refusal.status, refusal.problem);
  }

  // Posts, and follows the new turn to its end. If the message is refused, restores the page and returns the reason.
  async function begin(view, url, fields, accepted) {
    const turn = new Following(view);
    following = turn;
    clearNotice();
    showBusy();
    const response = await connect(url, { method: "POST", headers: { "X-CSRFToken": csrf }, body: new URLSearchParams(fields) }).catch(() => null);
    if (!response?.ok) {
      const problem = (await response?.json().catch(() => null)) ?? {};
      view.undo();
      letGo();
      return { status: response?.status ?? 0, problem };
    }
    accepted?.();
    if (!showsEnd()) {
      // The new turn is not on this page. The last page is loaded, which follows the turn.
      tabs?.postMessage("");
      line.abort();
      location.assign(here);
      return null;
    }
    clearLimit();
    address = here; // The page shows the newest version now.
    history.replaceState(null, "", address);
    await follow(turn, response);
    return null;
  }

  async function explain(status, problem) {
    if (status === 401) {
      signedOut();
    } else if (!status) {
      notice("Nothing is lost. Check the connection, then try again.", { strong: "The server cannot be reached." });
    } else if (problem.code === "turn-in-progress") {
      notice("What you wrote is kept.", { strong: "Already answering in another tab.", danger: false });
      await refresh();
      if (!following) clearNotice();
    } else if (!problem.scope || !(await freshLimits({ notSent: true }))) {
      const reload = problem.code === "csrf" ? { text: "Reload the page", href: here } : null;
      notice(problem.detail || "Nothing is lost. Please try again.", { strong: problem.title || `The server answered ${status}.`, link: reload });
    }
  }

  /* Editing: the message in the box replaces one that was sent. What was in the box before is kept as a draft. */

  function edit(turn) {
    if (following) return;
    if (!editing) drafts.keep(draftKey(), box.value);
    editing = turn.dataset.turn;
    const shown = showsEnd() ? `${here}?version=${turns.lastElementChild.dataset.turn}` : address;
    history.replaceState(null, "", `${shown}&edit=${editing}`);
    byId("editing").replaceChildren(byId("editing-template").content.cloneNode(true));
    write(drafts.read(draftKey()) || turn.querySelector(".bubble").textContent);
    box.focus();
    box.setSelectionRange(box.value.length, box.value.length);
  }

  // The draft is kept, so that somebody who edits the same message again finds what they had written.
  function leaveEditing(typed = "") {
    editing = "";
    history.replaceState(null, "", address);
    byId("editing").replaceChildren();
    write([drafts.read(draftKey()), typed].filter(Boolean).join("\n\n"));
    drafts.keep(draftKey(), box.value);
  }

  function stopEditing(typed) {
    drafts.keep(draftKey(), "");
    leaveEditing(typed);
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

  box.addEventListener("input", () => {
    measure();
    drafts.keep(draftKey(), box.value);
  });
  box.addEventListener("keydown", (event) => {
    // With keyCode 229 Safari says that Enter has ended a composition.
    const composing = event.isComposing || event.keyCode === 229;
    if (composing || event.shiftKey || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Enter" && !touch.matches) {
      event.preventDefault();
      send(box.value);
    } else if (event.key === "ArrowUp" && !box.value && !editing && turns.children.length && showsEnd()) {
      event.preventDefault();
      edit(turns.lastElementChild);
    }
  });
  const submitted = [
    ["#composer", () => send(box.value)],
    ["#stopping", () => performance.now() - swapped > DOUBLE_CLICK_MS && stop()],
    ["[data-example]", (example) => send(example.elements.message.value)],
    [".again", again],
  ];
  document.addEventListener("submit", (event) => {
    const [, act] = submitted.find(([selector]) => event.target.matches(selector)) ?? [];
    if (!act) return;
    event.preventDefault();
    act(event.target);
  });
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    const link = event.target.closest("a.edit, a.cancel");
    if (!link) return;
    event.preventDefault();
    if (link.matches(".edit")) edit(link.closest(".turn"));
    else cancel();
  });

  function cancel() {
    stopEditing();
    box.focus();
  }

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
    if (keys.open || event.defaultPrevented || event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = { "/": () => box.focus(), "?": () => keys.showModal(), Escape: following ? stop : editing && cancel }[event.key];
    if (!act || (typing && !(typing === box && event.key === "Escape"))) return;
    event.preventDefault();
    act();
  });

  if (!touch.matches) byId("tip").textContent = "Enter to send, Shift + Enter for a new line.";
  decorate(turns);
  countDown();
  box.disabled = false;
  write((editing && drafts.read(draftKey())) || box.value || drafts.read(draftKey()));
  join();
  if (!following && !touch.matches && !byId("notices").children.length) box.focus({ preventScroll: true });
})();
