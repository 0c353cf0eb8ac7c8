// Which view is shown, when the daemon is asked, and what is stale. The fragment of
// the URL determines what is shown, so links and the history work.

import { h, render } from "./dom.js";
import { ago, clock, number, until } from "./format.js";
import { link, views } from "./views.js";

const period = 2000; // milliseconds from one round of requests to the next
const timeout = 2500; // milliseconds that a response may take
const typingDelay = 150; // milliseconds from a key to the request, as more keys may follow

const $ = (id) => document.getElementById(id);

const shown = { node: null, route: null, data: null, failure: null, at: 0, list: "#/" };
let round = new AbortController(); // of the requests in progress
let wake = () => {}; // ends the wait for the next round
let typingTimer;

// parse returns the route of a URL's fragment; null if it is an element of the page,
// not a view.
function parse(hash) {
	if (hash !== "" && !hash.startsWith("#/")) return null;
	const [path, query] = hash.slice(2).split("?");
	const parts = path.split("/").filter(Boolean).map(decode);
	const view = parts[0] === "services" && parts.length === 3 ? "service" : parts[0] ?? "services";
	return { view: views[view] ? view : "services", path: views[view] ? parts : [], parameters: Object.fromEntries(new URLSearchParams(query)) };
}

// decode decodes a part of a path; invalid encodings are taken as they are.
function decode(part) {
	try {
		return decodeURIComponent(part);
	} catch {
		return part;
	}
}

// RequestError is a response of the daemon other than 200 OK.
class RequestError extends Error {}

// Unanswered means that there was no response.
class Unanswered extends Error {}

async function get(path) {
	const signal = AbortSignal.any([round.signal, AbortSignal.timeout(timeout)]);
	let response, text;
	try {
		// A relative URL, because kubectl sluice serves the pages of many nodes, each at its own path.
		response = await fetch("." + path, { signal, cache: "no-store", redirect: "error" });
		text = await response.text();
	} catch {
		throw new Unanswered("the daemon does not answer");
	}
	if (response.ok) return JSON.parse(text);
	throw new RequestError(message(text) || `the daemon answers ${response.status}`);
}

function message(text) {
	try {
		return JSON.parse(text).error;
	} catch {
		return "";
	}
}

// ask sends the requests of a round, one after the other.
async function ask() {
	const { signal } = round;
	const route = shown.route;
	try {
		shown.node ??= await get("/v1/node");
		const view = views[route.view];
		if (!(view.once && shown.data)) await load(view, route);
		shown.node = await get("/v1/node");
		shown.at = Date.now();
		show();
		showStale(null);
	} catch (error) {
		if (signal.aborted) return; // another view is shown now
		showStale(error);
		if (!(error instanceof Unanswered || error instanceof RequestError)) console.error(error);
	}
}

// load requests what a view shows. If the daemon refuses a request, its message is
// shown instead.
async function load(view, route) {
	try {
		shown.data = await view.load(get, route, shown.node);
		shown.failure = null;
	} catch (error) {
		if (!(error instanceof RequestError)) throw error;
		[shown.data, shown.failure] = [null, error.message];
	}
}

// showStale shows that the view is stale because of an error; null: it is not stale.
function showStale(error) {
	const since = shown.at ? `Stale since ${clock(shown.at)}` : "No answer yet";
	document.body.classList.toggle("stale", error !== null);
	$("stale").hidden = error === null;
	$("stale").textContent = error ? `${since}: ${error.message}. The page keeps trying.` : "";
}

function show() {
	const { node, route, data, failure } = shown;
	if (!node) return;
	document.title = `${node.name} · Sluice`;
	render($("health"), health(node));
	$("problem-count").hidden = node.counts.problems === 0;
	$("problem-count").textContent = number(node.counts.problems);
	const view = views[route.view];
	render($("first"), !failure && data && view.first?.(data));
	const width = Math.min($("view").clientWidth - 2 * cardPadding(), 1160);
	if (failure) render($("view"), h("p", { class: "notice bad", role: "alert" }, failure));
	else if (data || view.once) render($("view"), view.show(data, route, node, width));
}

// cardPadding is the padding of a card in style.css, plus its border.
const cardPadding = () => (innerWidth < 720 ? 15 : 21);

// levels are the CSS classes of the levels of a verdict.
const levels = { Good: "good", Warning: "warn", Error: "bad" };

function health(node) {
	const { verdict, counts, connectionTracking: tracking } = node;
	return [
		h("p", { class: "state", role: "status" }, h("span", { class: "dot " + (levels[verdict.level] ?? "warn") }), h("strong", null, verdict.text)),
		h("dl", null,
			fact("Node", node.name), fact("Mode", node.mode), fact("Services", number(counts.services)), fact("Endpoints", number(counts.endpoints)),
			counts.unreachable > 0 && fact("Unreachable", number(counts.unreachable)),
			counts.pending > 0 && fact("Pending", number(counts.pending)),
			counts.refused > 0 && fact("Refused", number(counts.refused)),
			node.sync.last && fact("Last sync", ago(node.sync.last, node.now)),
			tracking && fact("Tracked", `${number(tracking.entries)} of ${number(tracking.limit)}`),
			fact("Version", node.version)),
		node.doubts?.length > 0 && h("ul", { class: "doubts", "aria-label": "Doubts" }, node.doubts.map((d) => doubt(d, node.now))),
	];
}

const fact = (title, value) => h("div", { key: title }, h("dt", null, title), h("dd", null, value));

// doubt returns what the daemon doubts: since when, why, and what happens next and when.
function doubt(d, now) {
	const when = d.nextAt && (Date.parse(d.nextAt) > Date.parse(now) ? `, ${until(d.nextAt, now)}` : ", now");
	return h("li", { key: `${d.kind} ${d.object ?? ""}` },
		h("span", { class: "badge " + (d.severity === "Error" ? "bad" : "warn") }, d.kind), d.object && h("strong", null, d.object),
		h("span", null, d.reason), h("span", { class: "quiet" }, `since ${ago(d.since, now).replace(" ago", "")}`),
		d.next && h("span", { class: "quiet" }, `next: ${d.next}${when || ""}`));
}

// go shows the view of the URL's fragment, at once if its data is there already.
function go() {
	const route = parse(location.hash);
	if (!route) return;
	clearTimeout(typingTimer); // or a filter just typed would lead back to the list
	const same = shown.route?.view === route.view && shown.route.path.join() === route.path.join();
	if (route.view === "services") shown.list = location.hash || "#/";
	Object.assign(shown, { route, failure: null, data: same && !views[route.view].once ? shown.data : null });
	for (const a of document.querySelectorAll("nav [data-view]")) {
		a.toggleAttribute("aria-current", a.dataset.view === (route.view === "service" ? "services" : route.view));
	}
	fields("filter", route.view === "services");
	fields("explain", route.view === "explain");
	if (!same) {
		render($("first"));
		render($("view"), h("p", { class: "quiet" }, "Asking the daemon ..."));
		scrollTo(0, 0);
		if (route.view === "service") $("main").focus({ preventScroll: true });
	}
	again();
}

// fields shows or hides a form, and fills it from the route.
function fields(id, visible) {
	const form = $(id);
	form.hidden = !visible;
	for (const field of form.elements) {
		if (!visible || !field.name || field === document.activeElement) continue;
		const value = shown.route.parameters[field.name] ?? "";
		if (field.type === "checkbox") field.checked = value === "true";
		else field.value = value;
	}
}

// again aborts the round in progress and begins the next.
function again() {
	round.abort();
	wake();
}

const wait = (milliseconds) => new Promise((resolve) => {
	wake = resolve;
	setTimeout(resolve, milliseconds);
});

// poll asks for ever, one request at a time, while the page is visible.
async function poll() {
	for (;;) {
		const began = performance.now();
		round = new AbortController();
		if (!document.hidden) await ask();
		if (!round.signal.aborted) await wait(Math.max(period - (performance.now() - began), 0));
	}
}

const values = (form) => Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, name === "problems" ? "true" : value.trim()]));

$("filter").addEventListener("input", () => {
	clearTimeout(typingTimer);
	typingTimer = setTimeout(() => location.replace(link([], { sort: shown.route.parameters.sort, ...values($("filter")) })), typingDelay);
});
$("filter").addEventListener("submit", (event) => event.preventDefault());
$("explain").addEventListener("submit", (event) => {
	event.preventDefault();
	const to = link(["explain"], values($("explain")));
	if (location.hash === to) go(); // the same question once more
	else location.hash = to;
});

// Keys: / filters, Escape leaves, arrows go from row to row.
document.addEventListener("keydown", (event) => {
	const inField = event.target.matches("input, select");
	if (event.key === "/" && !inField && !$("filter").hidden) $("filter").elements.filter.focus();
	else if (event.key === "Escape" && shown.route.view === "service") location.hash = shown.list;
	else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
		if (event.target.matches("select") || !step(event.key === "ArrowDown" ? 1 : -1)) return;
	} else return;
	event.preventDefault();
});

// step moves the focus to the next row, or to the previous one.
function step(by) {
	const rows = [...document.querySelectorAll(".row-link")];
	const at = rows.indexOf(document.activeElement);
	if (at < 0 && document.activeElement !== $("filter").elements.filter) return false;
	const next = at + by < 0 ? $("filter").elements.filter : rows[at + by];
	next?.focus();
	return true;
}

addEventListener("hashchange", go);
addEventListener("resize", show);
document.addEventListener("visibilitychange", () => !document.hidden && again());
go();
poll();
