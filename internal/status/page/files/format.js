// Numbers and times as text.

const whole = new Intl.NumberFormat("en");

// number formats a count, for example 12,345; a dash if there is none.
export const number = (n) => (n === undefined || n === null ? "–" : whole.format(n));

// plural formats a count with its noun.
export const plural = (n, noun) => `${number(n)} ${noun}${n === 1 ? "" : "s"}`;

// bytes formats a number of bytes with three digits and a unit.
export function bytes(n) {
	if (n === undefined || n === null) return "–";
	const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
	let unit = 0;
	for (; n >= 1024 && unit < units.length - 1; unit++) n /= 1024;
	return `${unit === 0 ? Math.round(n) : short(n)} ${units[unit]}`;
}

// short formats a number with three digits, or more if it is 1,000 or larger.
export function short(n) {
	if (n >= 100 || n === 0) return whole.format(Math.round(n));
	return n >= 10 ? n.toFixed(1) : n.toFixed(2);
}

// percent formats a share from 0 to 1; a dash if it is null.
export function percent(share) {
	if (share === null) return "–";
	const p = 100 * share;
	return `${p > 0 && p < 10 && p !== Math.round(p) ? p.toFixed(1) : Math.round(p)} %`;
}

// clock formats a time as HH:MM:SS in the browser's time zone.
export const clock = (t) => new Date(t).toLocaleTimeString("en-GB", { hour12: false });

// span formats a duration in seconds with its largest one or two units.
export function span(seconds) {
	if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
	if (seconds < 1) return `${short(seconds * 1e3)} ms`;
	if (seconds < 10 && seconds % 1) return `${seconds.toFixed(1)} s`;
	if (seconds < 60) return `${Math.round(seconds)} s`;
	if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
	if (seconds < 86400) return two(seconds, [3600, "h"], [60, "min"]);
	return two(seconds, [86400, "d"], [3600, "h"]);
}

// two formats a duration with two units; the second is left out if it is zero.
function two(seconds, [large, largeName], [small, smallName]) {
	const rest = Math.floor((seconds % large) / small);
	return `${Math.floor(seconds / large)} ${largeName}` + (rest > 0 ? ` ${rest} ${smallName}` : "");
}

// ago formats how long before now a time was, in whole seconds. Both are times of the
// daemon's clock.
export function ago(time, now) {
	if (Date.parse(time) < 0) return "–"; // Go's zero time: never
	const seconds = (Date.parse(now) - Date.parse(time)) / 1000;
	return seconds < 1 ? "just now" : `${span(Math.round(seconds))} ago`;
}

// until formats how long after now a time is, as ago does.
export const until = (time, now) => `in ${span(Math.ceil((Date.parse(time) - Date.parse(now)) / 1000))}`;
