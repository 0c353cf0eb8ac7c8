// Creates elements, and updates the document. Text is always added as a text node, so
// that no name of an object can become an element.

const svgNamespace = "http://www.w3.org/2000/svg";

// h returns an HTML element. Attributes that are null or false are left out; true is an
// empty attribute; key identifies the element among those of its parent.
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

// s returns an SVG element.
export const s = (tag, attributes, ...children) => fill(document.createElementNS(svgNamespace, tag), attributes, children);

function fill(element, attributes, children) {
	for (const [name, value] of Object.entries(attributes ?? {})) {
		if (value === null || value === undefined || value === false) continue;
		element.setAttribute(name === "key" ? "data-key" : name, value === true ? "" : value);
	}
	element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false && c !== ""));
	return element;
}

// render makes the children of parent equal to wanted. It changes only what differs, so
// that focus, selection and scroll position stay.
export function render(parent, ...wanted) {
	const focused = document.activeElement;
	patch(parent, fill(document.createDocumentFragment(), null, wanted).childNodes);
	if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}

const keyOf = (node) => node.dataset?.key;

function patch(parent, children) {
	const wanted = [...children];
	const keys = new Set(wanted.map(keyOf));
	const keyed = new Map();
	for (const child of [...parent.childNodes]) {
		const key = keyOf(child);
		if (!key) continue;
		if (keys.has(key)) keyed.set(key, child);
		else child.remove();
	}
	let at = parent.firstChild;
	for (const want of wanted) {
		const have = keyOf(want) ? keyed.get(keyOf(want)) : at;
		if (!have || have.nodeName !== want.nodeName || keyOf(have) !== keyOf(want)) {
			parent.insertBefore(want, at);
			continue;
		}
		if (have === at) at = at.nextSibling;
		else parent.insertBefore(have, at);
		update(have, want);
	}
	while (at) {
		const next = at.nextSibling;
		at.remove();
		at = next;
	}
}

function update(have, want) {
	if (have.nodeType === Node.TEXT_NODE) {
		if (have.data !== want.data) have.data = want.data;
		return;
	}
	for (const { name } of [...have.attributes]) {
		if (!want.hasAttribute(name)) have.removeAttribute(name);
	}
	for (const { name, value } of want.attributes) {
		if (have.getAttribute(name) !== value) have.setAttribute(name, value);
	}
	patch(have, want.childNodes);
}
