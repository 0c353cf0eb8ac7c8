// What each view requests from the daemon, and how it shows the responses. A view has
// load, which requests data, and show, which returns its elements; first, if a view
// has it, returns elements above the forms.

import { h } from "./dom.js";
import { curve, draw, ofExplanation, ofPort, shares } from "./flow.js";
import { ago, bytes, clock, number, percent, plural, short, span } from "./format.js";
import { Traffic } from "./traffic.js";

const pageSize = 50;
const maxEndpoints = 200; // of a port that are requested
const traffic = new Traffic();

// link returns the URL of a view. Empty parameters are left out.
export function link(path, parameters = {}) {
	const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value)).toString();
	return "#/" + path.map(encodeURIComponent).join("/") + (query && "?" + query);
}

const serviceLink = (s) => link(["services", s.namespace, s.name]);

// listQuery returns the query of a list, from a route's parameters.
function listQuery(parameters, names, limit = pageSize) {
	const query = new URLSearchParams({ limit });
	for (const name of [...names, "continue"]) {
		if (parameters[name]) query.set(name, parameters[name]);
	}
	return "?" + query;
}

// nonNull replaces fields that are null, as empty lists may be in a response.
const nonNull = (object, ...fields) => {
	for (const field of fields) object[field] ??= [];
	return object;
};

const getList = async (get, path) => nonNull(await get(path), "items");

// cameFrom has the continue token of the previous page, by that of each page. The API
// only gives the token of the next page.
const cameFrom = new Map();

// pages returns the links to other pages of a list.
function pages(list, route) {
	const to = (place) => link(route.path, { ...route.parameters, continue: place });
	const here = route.parameters.continue ?? "";
	if (list.continue) cameFrom.set(list.continue, here);
	const before = cameFrom.get(here);
	if (!here && !list.continue) return null;
	return h("nav", { class: "pages", "aria-label": "Pages" },
		here && h("a", { href: to("") }, "First"),
		here && before && h("a", { href: to(before) }, "Previous"),
		list.continue && h("a", { href: to(list.continue), rel: "next" }, "Next"));
}

// states are the CSS classes of the states of a Service. The words are those of the API.
const states = { InForce: "good", Refused: "bad" };

const badge = (service) => h("span", { class: "badge " + (states[service.state] ?? "warn") }, service.state);

const perSecond = (rate, unit = short) => (rate ? `${unit(rate)}/s` : "");

// table returns a table. Each column has a title and a function that shows an item;
// it may have a sort key and a class.
function table(caption, columns, items, key, heading = (c) => c.title) {
	return h("table", { class: "list", key: caption },
		h("caption", { class: "hidden" }, caption),
		h("thead", null, h("tr", null, columns.map((c) => h("th", { scope: "col", class: c.class, "aria-sort": c.sorted }, heading(c))))),
		h("tbody", null, items.map((item) => h("tr", { key: key(item) },
			columns.map((c) => h("td", { class: c.class, "data-label": c.title }, c.show(item)))))));
}

const services = {
	async load(get, route, node) {
		const list = await getList(get, "/v1/services" + listQuery(route.parameters, ["filter", "sort", "problems"]));
		const problems = node.counts.problems > 0 ? await getList(get, "/v1/problems?limit=3") : null;
		for (const s of list.items) traffic.see(name(s), nonNull(s, "ports").traffic);
		traffic.forget(list.items.map(name));
		return { list, problems };
	},
	first: ({ problems }) => problems?.items.length > 0 && problemCard(problems),
	show({ list }, route, node) {
		const { filter, problems: only } = route.parameters;
		const columns = serviceColumns(node).filter(counting(list.items)).map((c) => ({ ...c, sorted: sortedBy(c, route) }));
		return [
			h("p", { class: "quiet total", role: "status" }, plural(list.total, "Service"), filter || only ? " match" : ""),
			list.items.length > 0
				? table("Services", columns, list.items, name, (c) => sortLink(c, route))
				: h("p", { class: "empty" }, filter || only ? "No Service matches." : "There are no Services yet."),
			pages(list, route),
		];
	},
};

const name = (s) => `${s.namespace}/${s.name}`;

function serviceColumns(node) {
	return [
		{ title: "Service", sort: "name", show: (s) => h("a", { href: serviceLink(s), class: "row-link" }, h("span", { class: "quiet" }, s.namespace + "/"), h("wbr"), s.name) },
		{ title: "State", sort: "-state", show: (s) => [badge(s), s.problems > 0 && h("span", { class: "badge warn" }, plural(s.problems, "problem"))] },
		{ title: "Address", class: "mono", show: (s) => [s.address || "–", (s.external ?? []).slice(0, 2).map((a) => [h("br"), a])] },
		{ title: "Ports", class: "mono", show: (s) => listed(s.ports, 3) },
		{ title: "Endpoints", sort: "used", class: "figure", show: (s) => (s.used === s.endpoints ? number(s.used) : `${number(s.used)} of ${number(s.endpoints)}`) },
		{ title: "Connections", sort: "-connections", counter: "connections", class: "figure", show: (s) => [number(s.traffic?.connections), rate(name(s), "connections")] },
		{ title: "Bytes", sort: "-bytes", counter: "bytesIn", class: "figure minor", show: (s) => volume(s.traffic) },
		{ title: "Changed", sort: "-since", class: "figure minor", show: (s) => h("span", { class: "quiet" }, ago(s.since, node.now)) },
	];
}

function listed(items, limit) {
	const rest = items.length - limit;
	return items.slice(0, limit).join(", ") + (rest > 0 ? ` and ${rest} more` : "") || "–";
}

const rate = (key, counter) => {
	const text = perSecond(traffic.rate(key, counter));
	return text && h("span", { class: "rate" }, text);
};

// counting leaves out columns of counters that no item has.
const counting = (items) => (column) => !column.counter || items.some((i) => i.traffic?.[column.counter] !== undefined);

const volume = (t) => bytes(t?.bytesIn === undefined ? undefined : t.bytesIn + (t.bytesOut ?? 0));

const bare = (sort) => sort?.replace(/^-/, "");

function sortedBy(column, route) {
	const sort = route.parameters.sort ?? "name";
	if (!column.sort || bare(sort) !== bare(column.sort)) return null;
	return sort.startsWith("-") ? "descending" : "ascending";
}

// sortLink returns a link that sorts by a column, or reverses the order if the list is
// sorted by it.
function sortLink(column, route) {
	if (!column.sort) return column.title;
	const turned = column.sorted === "ascending" ? "-" + bare(column.sort) : bare(column.sort);
	const mark = { ascending: " ↑", descending: " ↓" }[column.sorted];
	return h("a", { href: link(route.path, { ...route.parameters, continue: "", sort: column.sorted ? turned : column.sort }) },
		column.title, mark && h("span", { "aria-hidden": "true" }, mark));
}

const problemItem = (p) => h("li", null, h("strong", null, objectLink(p.object)), p.field && h("code", null, p.field), h("span", null, p.reason));

// objectLink returns a link if the object is a Service.
function objectLink(object) {
	const found = /^Service ([^/\s]+)\/([^/\s]+)$/.exec(object);
	return found ? h("a", { href: link(["services", found[1], found[2]]) }, object) : object;
}

function problemCard(problems) {
	const rest = problems.total - problems.items.length;
	return h("section", { class: "card problems", "aria-label": "Problems" },
		h("h2", null, plural(problems.total, "problem")),
		h("ul", null, problems.items.map(problemItem)),
		rest > 0 && h("p", null, h("a", { href: "#/problems" }, `All ${number(problems.total)} problems`)));
}

const problems = {
	load: (get, route) => getList(get, "/v1/problems" + listQuery(route.parameters, [])),
	show: (list, route) => [
		h("h1", null, "Problems"),
		h("p", { class: "quiet" }, "Parts of objects that Sluice cannot use. Everything else is in force."),
		list.items.length > 0
			? h("section", { class: "card problems", "aria-label": "Problems" }, h("ul", null, list.items.map(problemItem)))
			: h("p", { class: "empty" }, "None: every object could be used."),
		pages(list, route),
	],
};

const changes = {
	load: (get, route) => getList(get, "/v1/changes" + listQuery(route.parameters, [])),
	show: (list, route) => [
		h("h1", null, "Changes"),
		h("p", { class: "quiet" }, "The service ports that were last added, changed or removed in the kernel, and how long that took from when the daemon received the change."),
		list.items.length > 0 ? table("Changes", changeColumns, list.items, (c) => c.number) : h("p", { class: "empty" }, "None yet."),
		pages(list, route),
	],
};

const changeColumns = [
	{ title: "Time", class: "mono", show: (c) => clock(c.time) },
	{ title: "What", show: (c) => c.what },
	{ title: "Service port", show: (c) => c.servicePort },
	{ title: "Detail", show: (c) => c.detail || "–" },
	{ title: "In force after", class: "figure", show: (c) => span(c.seconds) },
];

const service = {
	async load(get, route) {
		const one = nonNull(await get("/v1/services/" + route.path.slice(1).map(encodeURIComponent).join("/") + `?limit=${maxEndpoints}`), "rows");
		const seen = [[name(one), one.traffic]];
		for (const port of one.rows) {
			for (const e of nonNull(port, "frontends", "endpoints").endpoints) seen.push([endpointKey(port, e), e.traffic]);
		}
		for (const [key, counted] of seen) traffic.see(key, counted);
		traffic.forget(seen.map(([key]) => key));
		return one;
	},
	show(one, route, node, width) {
		const port = one.rows.find((p) => portKey(p) === route.parameters.port) ?? one.rows[0];
		return [
			h("nav", { class: "crumbs", "aria-label": "Where this is" }, h("a", { href: "#/" }, "Services"), " / ", one.namespace),
			h("div", { class: "title" }, h("h1", null, one.name), badge(one),
				h("a", { class: "button", href: link(["explain"], { to: name(one) }) }, "Explain a packet to it")),
			one.reason && h("p", { class: "notice bad" }, one.reason),
			one.found?.length > 0 && problemCard({ total: one.found.length, items: one.found }),
			figures(one, node),
			port ? [portTabs(one, port, route), flowCard(one, port, width), endpointCard(port, route, node)] : h("p", { class: "empty" }, "It has no ports here."),
		];
	},
};

const portKey = (p) => [p.name, p.protocol, p.family].filter(Boolean).join("/");
const endpointKey = (p, e) => portKey(p) + " " + e.address;

const figure = (title, value, ...more) => h("div", { class: "tile" }, h("dt", null, title), h("dd", null, value), ...more);

function figures(one, node) {
	const t = one.traffic ?? {};
	const key = name(one);
	const refused = Object.entries(t.refusedPackets ?? {});
	return h("dl", { class: "tiles" },
		figure("Endpoints used", `${number(one.used)} of ${number(one.endpoints)}`),
		one.traffic && figure("Connections", number(t.connections), rate(key, "connections"), curve(traffic.curve(key, "connections"), "connections per second, the last two minutes")),
		t.activeConnections !== undefined && figure("Open now", number(t.activeConnections)),
		t.bytesIn !== undefined && figure("From clients", bytes(t.bytesIn), byteRate(key, "bytesIn")),
		t.bytesOut !== undefined && figure("To clients", bytes(t.bytesOut), byteRate(key, "bytesOut")),
		refused.map(([reason, n]) => figure("Refused: " + reason, number(n))),
		!one.traffic && figure("Traffic", "none counted"),
		figure("Changed", ago(one.since, node.now)));
}

const byteRate = (key, counter) => {
	const text = perSecond(traffic.rate(key, counter), bytes);
	return text && h("span", { class: "rate" }, text);
};

function portTabs(one, chosen, route) {
	if (one.rows.length < 2) return null;
	return h("nav", { class: "tabs", "aria-label": "Ports" }, one.rows.map((p) => h("a", {
		href: link(route.path, { port: portKey(p) }), "aria-current": p === chosen ? "true" : null, key: portKey(p),
	}, p.name || p.protocol, " ", h("span", { class: "quiet" }, `${p.protocol} ${p.family}`))));
}

function flowCard(one, port, width) {
	const label = `How a packet flows to ${name(one)}: ${port.frontends.length} frontends, ${port.endpoints.filter((e) => e.used).length} endpoints used`;
	return h("section", { class: "card", "aria-label": "Flow" },
		h("h2", null, "How a packet flows"),
		draw(ofPort(port), width, label),
		h("p", { class: "quiet" }, flowNotes(port).join(" ")));
}

// endpointCard shows a page of the endpoints in the response.
function endpointCard(port, route, node) {
	const from = Number(route.parameters.from) || 0;
	const some = port.endpoints.slice(from, from + pageSize);
	const to = (place) => link(route.path, { ...route.parameters, from: place || "" });
	return h("section", { class: "card", "aria-label": "Endpoints" },
		h("h2", null, plural(port.endpointCount, "endpoint")),
		statusLine(port.status, node),
		some.length > 0
			? table("Endpoints", endpointColumns(port).filter(counting(some)), some, (e) => e.address)
			: h("p", { class: "empty" }, "There are none. Is the selector right, and are pods running?"),
		port.endpointCount > port.endpoints.length && h("p", { class: "quiet" }, `Only the first ${number(port.endpoints.length)} are shown.`),
		port.endpoints.length > pageSize && h("nav", { class: "pages", "aria-label": "Pages" },
			from > 0 && h("a", { href: to(from - pageSize) }, "Previous"),
			from + pageSize < port.endpoints.length && h("a", { href: to(from + pageSize), rel: "next" }, "Next")));
}

// flowNotes returns what the drawing does not show.
function flowNotes(port) {
	const notes = [];
	if (port.balancing) notes.push(`Endpoints are chosen by ${port.balancing}.`);
	if (port.affinitySeconds) notes.push(`A client stays with its endpoint for ${span(port.affinitySeconds)}.`);
	if (port.externalTrafficPolicy === "Local" && port.frontends.some((f) => f.kind !== "ClusterIP")) {
		notes.push("Pods of this node and the node itself reach every usable endpoint, by external addresses too.");
	}
	return notes;
}

function statusLine(status, node) {
	const parts = [];
	if (status.since) parts.push(`In force since ${clock(status.since)}, ${ago(status.since, node.now)}.`);
	if (status.pending) parts.push(`A newer version is pending since ${clock(status.pending)}.`);
	if (status.reason) parts.push(`The kernel refuses it: ${status.reason}.`);
	if (status.nextTry) parts.push(`It is tried again at ${clock(status.nextTry)}.`);
	return parts.length > 0 && h("p", { class: status.reason ? "notice bad" : "quiet" }, parts.join(" "));
}

function endpointColumns(port) {
	const [cluster, local] = [shares(port, "Cluster"), shares(port, "Local")];
	const anyLocal = [port.internalTrafficPolicy, port.externalTrafficPolicy].includes("Local");
	const share = (of) => (e) => (of.has(e.address) ? percent(of.get(e.address)) : "–");
	return [
		{ title: "Endpoint", class: "mono", show: (e) => e.address },
		{ title: "State", show: (e) => [e.used || e.usedLocal ? h("span", { class: "badge good" }, "used") : h("span", { class: "badge off" }, "not used"), e.reason && h("span", { class: "quiet" }, " " + e.reason)] },
		{ title: "Where", show: (e) => (e.local ? "this node" : "another node") + (e.hintedZones?.length ? `, for ${e.hintedZones.join(", ")}` : "") },
		{ title: "Condition", show: condition },
		{ title: anyLocal ? "Share, Cluster" : "Share", class: "figure", show: share(cluster) },
		...(anyLocal ? [{ title: "Share, Local", class: "figure", show: share(local) }] : []),
		{ title: "Connections", counter: "connections", class: "figure", show: (e) => [number(e.traffic?.connections), rate(endpointKey(port, e), "connections")] },
		{ title: "Bytes", counter: "bytesIn", class: "figure", show: (e) => volume(e.traffic) },
	];
}

function condition(e) {
	if (e.terminating) return e.serving ? "terminating, serving" : "terminating";
	return e.ready ? "ready" : "not ready";
}

// explain sends one request per question, and does not poll.
const explain = {
	load: (get, route) => (route.parameters.to ? get("/v1/explain?" + new URLSearchParams(route.parameters)) : null),
	once: true,
	show(e, route, node, width) {
		if (!e) return h("p", { class: "quiet" }, "Where does a packet go, why, and does the kernel agree? Enter an address and port, or a Service.");
		return [
			h("section", { class: "card verdict", "aria-label": "Verdict" },
				h("p", { class: "title" }, h("span", { class: e.verdict === "forward" ? "badge good" : "badge bad" }, e.verdict), h("strong", null, e.reason), whose(e), kernelBadge(e.kernel)),
				h("p", null, e.message),
				h("p", { class: "quiet" }, packetWords(e.packet)),
				draw(ofExplanation(e), width, `The packet's path: ${e.message}`),
				facts(e)),
			kernelCard(e.kernel),
			bullets("What to try", e.try), bullets("Doubts", e.doubts?.map((d) => `${d.kind}: ${d.reason}`)), bullets("Notes", e.notes),
		];
	},
};

const whose = (e) => e.service && h("a", { href: serviceLink(e.service) }, name(e.service));

function packetWords(p) {
	const way = [p.protocol, p.from && `from ${p.from}`, p.to && `to ${p.to}`, p.in && `in by ${p.in}`].filter(Boolean).join(" ");
	return `${way}. The client counts as ${p.origin}: ${p.originReason}.`;
}

function facts(e) {
	const items = [];
	if (e.masquerade) items.push(["Client's address", e.masquerade]);
	if (e.affinity) items.push(["Affinity", `${span(e.affinity.seconds)}; ${e.affinity.endpoint || e.affinity.unknown || "this client is not remembered"}`]);
	if (e.flows) items.push(["Open connections", e.flows.unknown || number(e.flows.total) + (e.flows.except ? ", not counting " + e.flows.except : "")]);
	for (const f of e.flows?.items ?? []) items.push([f.client, f.endpoint + (f.stale ? ", which new connections do not go to" : "")]);
	return items.length > 0 && h("dl", { class: "facts" }, items.map(([title, value]) => [h("dt", null, title), h("dd", null, value)]));
}

const kernelWords = {
	agrees: ["good", "The kernel agrees"], differs: ["bad", "The kernel differs"],
	failed: ["warn", "The kernel could not be read"], notChecked: ["off", "The kernel was not checked"],
};

function kernelBadge(k) {
	const [kind, words] = kernelWords[k.state] ?? ["off", k.state];
	return h("span", { class: "kernel" }, k.objects > 0 && h("span", { class: "quiet" }, plural(k.objects, "object") + " read back "), h("span", { class: "badge " + kind }, words));
}

function kernelCard(k) {
	if (!k.why && !k.differences?.length) return null;
	return h("section", { class: "card", "aria-label": "Kernel" },
		h("h2", null, "The kernel"), k.why && h("p", { class: "quiet" }, k.why),
		k.differences?.length > 0 && table("Differences", differenceColumns, k.differences, (d) => d.object));
}

const differenceColumns = [
	{ title: "Object", class: "mono", show: (d) => d.object },
	{ title: "Written", class: "mono", show: (d) => d.want || "nothing" },
	{ title: "There", class: "mono", show: (d) => d.have || "missing" },
];

const bullets = (title, items) => items?.length > 0 && h("section", { class: "card", "aria-label": title }, h("h2", null, title), h("ul", null, items.map((i) => h("li", null, i))));

// views has all views by name.
export const views = { services, service, problems, changes, explain };
