// Numbers and times, for people.

const whole = new Intl.NumberFormat("en");

// number writes a count, like 12,345; what is not counted is a dash.
export const number = (n) => (n === undefined || n === null ? "–" : whole.format(n));

// plural writes a count with its noun.
export const plural = (n, noun) => `${number(n)} ${noun}${n === 1 ? "" : "s"}`;

// bytes writes an amount with three digits.
export function bytes(n) {
	if (n === undefined || n === null) return "–";
	const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
	let unit = 0;
	for (; n >= 1024 && unit < units.length - 1; unit++) n /= 1024;
	return `${unit === 0 ? Math.round(n) : short(n)} ${units[unit]}`;
}

// short writes a number with three digits at most before it gets long.
export function short(n) {
	if (n >= 100 || n === 0) return whole.format(Math.round(n));
	return n >= 10 ? n.toFixed(1) : n.toFixed(2);
}

// percent writes a share from 0 to 1; null: it is not known.
export function percent(share) {
	if (share === null) return "–";
	const p = 100 * share;
	return `${p > 0 && p < 10 && p !== Math.round(p) ? p.toFixed(1) : Math.round(p)} %`;
}

// clock writes a moment as HH:MM:SS of the reader's own time.
export const clock = (t) => new Date(t).toLocaleTimeString("en-GB", { hour12: false });

// span writes a duration in seconds by its largest unit or two.
export function span(seconds) {
	if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
	if (seconds < 1) return `${short(seconds * 1e3)} ms`;
	if (seconds < 10 && seconds % 1) return `${seconds.toFixed(1)} s`;
	if (seconds < 60) return `${Math.round(seconds)} s`;
	if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
	if (seconds < 86400) return two(seconds, [3600, "h"], [60, "min"]);
	return two(seconds, [86400, "d"], [3600, "h"]);
}

// two writes a duration by two units, the second only if there is any of it.
function two(seconds, [large, largeName], [small, smallName]) {
	const rest = Math.floor((seconds % large) / small);
	return `${Math.floor(seconds / large)} ${largeName}` + (rest > 0 ? ` ${rest} ${smallName}` : "");
}

// ago writes how long before now a moment was, in whole seconds at least, both
// by the daemon's clock.
export function ago(time, now) {
	if (Date.parse(time) < 0) return "–"; // Go's zero time: never
	const seconds = (Date.parse(now) - Date.parse(time)) / 1000;
	return seconds < 1 ? "just now" : `${span(Math.round(seconds))} ago`;
}
