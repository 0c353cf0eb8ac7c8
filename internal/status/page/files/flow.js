// The drawing of how a packet flows. Clients, frontends, policy and endpoints are
// columns of boxes. A line connects a box to the next step, and its width is the share
// of connections. On narrow screens the columns are below each other.

import { s } from "./dom.js";
import { percent, plural } from "./format.js";

const maxEndpoints = 12; // that are drawn; the table below lists all
const maxFrontends = 8;

const columns = ["client", "frontend", "policy", "endpoint"];
const titles = { client: "Client", frontend: "Frontend", policy: "Policy", endpoint: "Endpoint" };

// ofPort returns the graph of a port of a Service: boxes by column, and lines between
// them.
export function ofPort(port) {
	const graph = { boxes: [], lines: [] };
	graph.boxes.push({ id: "client", column: "client", title: "Client", note: port.protocol + ", " + port.family });
	const scopes = new Set();
	for (const [i, f] of port.frontends.slice(0, maxFrontends).entries()) {
		const scope = f.kind === "ClusterIP" ? port.internalTrafficPolicy : port.externalTrafficPolicy;
		frontend(graph, port, f, "f" + i, scope);
		if (!f.lostTo) scopes.add(scope);
	}
	more(graph, port.frontends.length - maxFrontends, "frontend");
	for (const scope of [...scopes].sort()) {
		graph.boxes.push({ id: scope, column: "policy", title: scope, note: scopeNotes[scope] });
	}
	endpoints(graph, port, [...scopes].sort());
	return graph;
}

function frontend(graph, port, f, id, scope) {
	const allowed = f.kind === "LoadBalancer" && port.allowFrom;
	const note = allowed ? `${f.kind}, from ${port.allowFrom.join(", ") || "nobody"}` : f.kind;
	graph.boxes.push({ id, column: "frontend", title: f.address, note: f.lostTo ? `${f.kind}, lost to ${f.lostTo}` : note, unused: !!f.lostTo });
	graph.lines.push({ from: "client", to: id, unused: !!f.lostTo });
	if (!f.lostTo) graph.lines.push({ from: id, to: scope });
}

const scopeNotes = { Cluster: "every usable endpoint", Local: "endpoints on this node" };
const usedBy = { Cluster: "used", Local: "usedLocal" };

// shares returns the share of connections of each endpoint of a scope, by address. A
// share is null if it is not known: the response, which has used endpoints first, does
// not have all of them, or the load decides.
export function shares(port, scope) {
	const weight = (e) => Math.max(e.weight ?? 1, 1);
	const used = port.endpoints.filter((e) => e[usedBy[scope]]);
	const all = used.reduce((sum, e) => sum + weight(e), 0);
	const last = port.endpoints.at(-1);
	const cut = port.endpointCount > port.endpoints.length && (last?.used || last?.usedLocal);
	const fixed = port.balancing !== "least-connections"; // whose shares depend on the load
	return new Map(used.map((e) => [e.address, cut || !fixed ? null : weight(e) / all]));
}

function endpoints(graph, port, scopes) {
	const byScope = new Map(scopes.map((scope) => [scope, shares(port, scope)]));
	const taken = (e) => scopes.some((scope) => byScope.get(scope).has(e.address));
	const shown = [...port.endpoints.filter(taken), ...port.endpoints.filter((e) => !taken(e))].slice(0, maxEndpoints);
	for (const e of shown) {
		const parts = scopes.filter((scope) => byScope.get(scope).get(e.address))
			.map((scope) => (scope === "Local" && scopes.length > 1 ? "Local " : "") + percent(byScope.get(scope).get(e.address)));
		const where = e.local ? "on this node" : "on another node";
		graph.boxes.push({
			id: e.address, column: "endpoint", title: e.address, unused: !taken(e),
			note: taken(e) ? where : e.reason || "not used", value: parts.join(", "),
		});
		for (const scope of scopes) {
			const share = byScope.get(scope).get(e.address);
			if (share !== undefined) graph.lines.push({ from: scope, to: e.address, share });
		}
	}
	more(graph, port.endpointCount - shown.length, "endpoint");
	for (const scope of scopes.filter((scope) => byScope.get(scope).size === 0)) nowhere(graph, scope, "no endpoint for it here");
}

// nowhere adds a box for packets that no endpoint receives.
function nowhere(graph, from, note) {
	if (!graph.boxes.some((b) => b.id === "nowhere")) graph.boxes.push({ id: "nowhere", column: "endpoint", title: "Not forwarded", note, bad: true });
	graph.lines.push({ from, to: "nowhere", bad: true });
}

function more(graph, n, column) {
	if (n > 0) graph.boxes.push({ id: "more " + column, column, title: `and ${plural(n, column)} more`, unused: true });
}

// ofExplanation returns the graph of the packet of an explanation.
export function ofExplanation(e) {
	const graph = { boxes: [], lines: [] };
	const bad = e.verdict !== "forward";
	const { packet, frontend: f } = e;
	graph.boxes.push({ id: "client", column: "client", title: packet.from || "Client", note: packet.origin });
	graph.boxes.push({ id: "frontend", column: "frontend", title: f?.address || packet.to || "no address", note: f?.kind || "no frontend", unused: !f });
	graph.boxes.push({ id: "policy", column: "policy", title: e.scope || e.verdict, note: bad ? e.reason : scopeNotes[e.scope], bad });
	graph.lines.push({ from: "client", to: "frontend" }, { from: "frontend", to: "policy" });
	for (const c of (e.candidates ?? []).slice(0, maxEndpoints)) {
		const note = [c.local ? "on this node" : "on another node", c.masquerade && "client hidden", c.hairpin && "the client itself"].filter(Boolean).join(", ");
		graph.boxes.push({ id: c.address, column: "endpoint", title: c.address, note, value: percent(c.share) });
		graph.lines.push({ from: "policy", to: c.address, share: c.share });
	}
	const unused = (e.notUsed ?? []).slice(0, maxEndpoints);
	for (const u of unused) {
		graph.boxes.push({ id: "not " + u.address, column: "endpoint", title: u.address, note: u.reason || "not used", unused: true });
	}
	const drawn = Math.min(e.candidates?.length ?? 0, maxEndpoints) + unused.length;
	more(graph, (e.candidateCount ?? 0) + (e.notUsedCount ?? 0) - drawn, "endpoint");
	if (bad) nowhere(graph, "policy", e.verdict);
	return graph;
}

const box = { height: 46, gap: 10, head: 26, pad: 12 };
const character = 6.4; // the width of a character of the small text, to cut long notes

// draw returns the drawing of a graph, for a width in pixels.
export function draw(graph, width, label) {
	const wide = width >= 720;
	const height = wide ? placeBeside(graph, width) : placeBelow(graph, width);
	const at = new Map(graph.boxes.map((b) => [b.id, b]));
	return s("svg", { class: "flow", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
		columns.map((c) => heading(graph, c, wide)),
		graph.lines.filter((l) => wide || !l.unused).map((l) => line(l, at.get(l.from), at.get(l.to), wide)),
		graph.boxes.map(drawBox));
}

// placeBeside places the columns beside each other, each centered vertically.
function placeBeside(graph, width) {
	const parts = { client: 0.14, frontend: 0.26, policy: 0.2, endpoint: 0.4 };
	const gap = Math.min(72, width * 0.06);
	const room = width - 3 * gap;
	const tall = Math.max(...columns.map((c) => inColumn(graph, c).length)) * (box.height + box.gap) - box.gap;
	let x = 0;
	for (const c of columns) {
		const boxes = inColumn(graph, c);
		let y = box.head + (tall - (boxes.length * (box.height + box.gap) - box.gap)) / 2;
		for (const b of boxes) {
			Object.assign(b, { x: x + 0.5, y, width: room * parts[c] - 1 });
			y += box.height + box.gap;
		}
		x += room * parts[c] + gap;
	}
	return box.head + tall + 2;
}

// placeBelow places the columns below each other, with room for the lines at the left.
function placeBelow(graph, width) {
	let y = 0;
	for (const c of columns) {
		const boxes = inColumn(graph, c);
		y += boxes.length > 0 ? box.head : 0;
		for (const b of boxes) {
			Object.assign(b, { x: 28, y, width: width - 29 });
			y += box.height + box.gap;
		}
	}
	return y;
}

const inColumn = (graph, column) => graph.boxes.filter((b) => b.column === column);

function heading(graph, column, wide) {
	const first = inColumn(graph, column)[0];
	return first && s("text", { class: "flow-head", x: first.x, y: (wide ? box.head : first.y) - 10, key: "head " + column }, titles[column]);
}

function line(l, from, to, wide) {
	const middle = (b) => b.y + box.height / 2;
	let d;
	if (wide) {
		const [x1, x2] = [from.x + from.width, to.x];
		const bend = (x2 - x1) / 2;
		d = `M${x1} ${middle(from)}C${x1 + bend} ${middle(from)} ${x2 - bend} ${middle(to)} ${x2} ${middle(to)}`;
	} else {
		d = `M${from.x} ${middle(from)}H${14}V${middle(to)}H${to.x}`;
	}
	const kind = l.bad ? " bad" : l.unused ? " unused" : "";
	return s("path", { class: "flow-line" + kind, d, "stroke-width": wide && l.share ? (1.5 + 5 * l.share).toFixed(2) : 1.5, key: `line ${l.from} ${l.to}` });
}

function drawBox(b) {
	const kind = b.bad ? " bad" : b.unused ? " unused" : "";
	const room = b.width - 2 * box.pad;
	return s("g", { class: "flow-box " + b.column + kind, transform: `translate(${b.x} ${b.y})`, key: "box " + b.id },
		s("title", null, [b.title, b.note, b.value].filter(Boolean).join(", ")),
		s("rect", { width: b.width, height: box.height, rx: 8 }),
		s("text", { class: "flow-title", x: box.pad, y: b.note ? 19 : 28 }, cut(b.title, room - 8 * (b.value?.length ?? 0), character * 1.16)),
		b.note && s("text", { class: "flow-note", x: box.pad, y: 36 }, cut(b.note, room, character)),
		b.value && s("text", { class: "flow-value", x: b.width - box.pad, y: 19, "text-anchor": "end" }, b.value));
}

function cut(text, room, width) {
	const limit = Math.floor(room / width);
	return text.length <= limit ? text : text.slice(0, Math.max(limit - 1, 1)) + "…";
}

// curve returns a small chart of rates over time.
export function curve(rates, label) {
	if (rates.length < 2) return null;
	const [width, height] = [72, 22];
	const top = Math.max(...rates, 1e-9);
	const points = rates.map((r, i) => `${((i * width) / (rates.length - 1)).toFixed(1)} ${(height - 2 - (r / top) * (height - 4)).toFixed(1)}`);
	return s("svg", { class: "curve", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
		s("path", { class: "curve-area", d: `M0 ${height}L${points.join("L")}L${width} ${height}Z` }),
		s("path", { class: "curve-line", d: "M" + points.join("L") }));
}
