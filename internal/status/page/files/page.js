// Which view is shown, when the daemon is asked, and what is stale. The address
// says everything about what is shown, so links and the history work.

import { h, render } from "./dom.js";
import { ago, clock, number, plural } from "./format.js";
import { link, views } from "./views.js";

const period = 2000; // milliseconds from one round of requests to the next
const patience = 2500; // and that an answer may take
const typing = 150; // and from a key to the request, as more keys may follow

const $ = (id) => document.getElementById(id);

const shown = { node: null, route: null, data: null, failure: null, at: 0, list: "#/" };
let round = new AbortController(); // of the requests under way
let wake = () => {}; // ends the wait for the next round
let typed; // the timer of what was typed

// parse reads the address; null: it is a place on the page and no view.
function parse(hash) {
	if (hash !== "" && !hash.startsWith("#/")) return null;
	const [path, query] = hash.slice(2).split("?");
	const parts = path.split("/").filter(Boolean).map(decode);
	const view = parts[0] === "services" && parts.length === 3 ? "service" : parts[0] ?? "services";
	return { view: views[view] ? view : "services", path: views[view] ? parts : [], parameters: Object.fromEntries(new URLSearchParams(query)) };
}

// decode reads a part of a path; what nobody encoded is taken as it is.
function decode(part) {
	try {
		return decodeURIComponent(part);
	} catch {
		return part;
	}
}

// RequestError is what the daemon said instead of an answer.
class RequestError extends Error {}

// Unanswered is that it said nothing.
class Unanswered extends Error {}

async function get(path) {
	const signal = AbortSignal.any([round.signal, AbortSignal.timeout(patience)]);
	let response, text;
	try {
		// Relative: kubectl sluice serves the pages of many nodes, each in a folder.
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

// ask makes the requests of a round one after the other.
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
		tell(null);
	} catch (error) {
		if (signal.aborted) return; // something else is to be shown now
		tell(error);
		if (!(error instanceof Unanswered || error instanceof RequestError)) console.error(error);
	}
}

// load asks for what a view shows. An answer that something cannot be had is
// one, too.
async function load(view, route) {
	try {
		shown.data = await view.load(get, route, shown.node);
		shown.failure = null;
	} catch (error) {
		if (!(error instanceof RequestError)) throw error;
		[shown.data, shown.failure] = [null, error.message];
	}
}

// tell says that what is shown is stale, or no more.
function tell(error) {
	const since = shown.at ? `Stale since ${clock(shown.at)}` : "No answer yet";
	document.body.classList.toggle("stale", error !== null);
	$("stale").hidden = error === null;
	$("stale").textContent = error ? `${since}: ${error.message}. It is asked again all the time.` : "";
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

// cardPadding is that of style.css, with its border.
const cardPadding = () => (innerWidth < 720 ? 15 : 21);

function health(node) {
	const [kind, words] = verdict(node);
	const { counts, connectionTracking: tracking } = node;
	return [
		h("p", { class: "state", role: "status" }, h("span", { class: "dot " + kind }), h("strong", null, words)),
		h("dl", null,
			fact("Node", node.name), fact("Mode", node.mode), fact("Services", number(counts.services)), fact("Endpoints", number(counts.endpoints)),
			counts.pending > 0 && fact("Pending", number(counts.pending)),
			counts.refused > 0 && fact("Refused", number(counts.refused)),
			node.sync.last && fact("Last sync", ago(node.sync.last, node.now)),
			tracking && fact("Tracked", `${number(tracking.entries)} of ${number(tracking.limit)}`),
			fact("Version", node.version)),
	];
}

const fact = (title, value) => h("div", { key: title }, h("dt", null, title), h("dd", null, value));

// verdict is the worst that can be said of the node.
function verdict({ health: state, sync, counts }) {
	if (!state.live || !state.healthy) return ["bad", `Not healthy: ${state.reason || "the health check says so"}`];
	if (!sync.done) return ["warn", `Waiting: ${sync.reason || "nothing is in force yet"}`];
	if (sync.error) return ["bad", `The last sync failed: ${sync.error}`];
	if (counts.refused > 0) return ["bad", `${plural(counts.refused, "service port")} refused by the kernel`];
	if (counts.pending > 0) return ["warn", `${plural(counts.pending, "service port")} pending`];
	return ["good", "Healthy, everything is in force"];
}

// go shows the view of the address, at once if something is known of it.
function go() {
	const route = parse(location.hash);
	if (!route) return;
	clearTimeout(typed); // or a filter just typed would lead back to the list
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

// fields shows a form or hides it, and fills it from the address.
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

// again ends the round under way and begins the next.
function again() {
	round.abort();
	wake();
}

const wait = (milliseconds) => new Promise((resolve) => {
	wake = resolve;
	setTimeout(resolve, milliseconds);
});

// poll asks for ever, one request at a time, while somebody can look.
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
	clearTimeout(typed);
	typed = setTimeout(() => location.replace(link([], { sort: shown.route.parameters.sort, ...values($("filter")) })), typing);
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

// step moves the focus to the next row, or the one before.
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
