package statusapi

// Add adds the counters of o to t. A counter that is nil in one of them has the
// value of the other.
func (t *Traffic) Add(o *Traffic) {
	for _, f := range []struct{ to, from **uint64 }{
		{&t.Connections, &o.Connections},
		{&t.Active, &o.Active},
		{&t.Failed, &o.Failed},
		{&t.BytesIn, &o.BytesIn},
		{&t.BytesOut, &o.BytesOut},
		{&t.PacketsIn, &o.PacketsIn},
		{&t.PacketsOut, &o.PacketsOut},
	} {
		switch {
		case *f.from == nil:
		case *f.to == nil:
			*f.to = new(**f.from)
		default:
			*f.to = new(**f.to + **f.from)
		}
	}
	for reason, n := range o.Refused {
		if t.Refused == nil {
			t.Refused = map[string]uint64{}
		}
		t.Refused[reason] += n
	}
}
