// Rates, from counters that were seen. The daemon counts; what a rate is taken
// over is a matter of the page.

const window = 10_000; // milliseconds that a rate is taken over
const kept = 120_000; // and that are kept for the curve

const counters = ["connections", "bytesIn", "bytesOut", "packetsIn", "packetsOut"];

// Traffic remembers what was counted, by key.
export class Traffic {
	#samples = new Map();

	// see notes the counters of a key. Counters that went back begin anew.
	see(key, traffic) {
		if (!traffic) return;
		let samples = this.#samples.get(key) ?? [];
		const last = samples.at(-1);
		if (last && counters.some((c) => traffic[c] < last.traffic[c])) samples = [];
		const at = performance.now();
		samples.push({ at, traffic });
		this.#samples.set(key, samples.filter((sample) => sample.at >= at - kept));
	}

	// forget drops whatever is not among the keys.
	forget(keys) {
		const wanted = new Set(keys);
		for (const key of this.#samples.keys()) {
			if (!wanted.has(key)) this.#samples.delete(key);
		}
	}

	// rate returns how much a counter of a key grows in a second; null: not known.
	rate(key, counter) {
		const samples = this.#samples.get(key) ?? [];
		return growth(samples, samples.length - 1, counter);
	}

	// curve returns the rates of a counter over all the time that is kept, the
	// newest last.
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
