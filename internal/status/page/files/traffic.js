// Rates, computed from counters. The daemon only counts; the page chooses the time that
// a rate is computed over.

const window = 10_000; // milliseconds that a rate is computed over
const kept = 120_000; // milliseconds that are kept for the chart

const counters = ["connections", "bytesIn", "bytesOut", "packetsIn", "packetsOut"];

// Traffic keeps samples of counters, by key.
export class Traffic {
	#samples = new Map();

	// see adds a sample of a key. If a counter went back, it was reset, and earlier
	// samples are dropped.
	see(key, traffic) {
		if (!traffic) return;
		let samples = this.#samples.get(key) ?? [];
		const last = samples.at(-1);
		if (last && counters.some((c) => traffic[c] < last.traffic[c])) samples = [];
		const at = performance.now();
		samples.push({ at, traffic });
		this.#samples.set(key, samples.filter((sample) => sample.at >= at - kept));
	}

	// forget drops the samples of all other keys.
	forget(keys) {
		const wanted = new Set(keys);
		for (const key of this.#samples.keys()) {
			if (!wanted.has(key)) this.#samples.delete(key);
		}
	}

	// rate returns how much a counter of a key grows per second; null if not known.
	rate(key, counter) {
		const samples = this.#samples.get(key) ?? [];
		return growth(samples, samples.length - 1, counter);
	}

	// curve returns the rates of a counter at all samples that are kept, the newest last.
	curve(key, counter) {
		const samples = this.#samples.get(key) ?? [];
		return samples.map((_, i) => growth(samples, i, counter)).filter((rate) => rate !== null);
	}
}

// growth returns the rate at a sample, over the window before it.
function growth(samples, i, counter) {
	const last = samples[i];
	const first = samples.find((sample) => last && sample.at >= last.at - window);
	if (!last || first === last || first.traffic[counter] === undefined || last.traffic[counter] === undefined) return null;
	return (last.traffic[counter] - first.traffic[counter]) / ((last.at - first.at) / 1000);
}
