package cli

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/statusapi"
)

// counted returns the traffic of two Services at the n-th reading.
func counted(n uint64) statusapi.TrafficList {
	port := func(name, endpoint string, conns, in uint64, refused map[string]uint64) statusapi.PortTraffic {
		failed := conns / 10
		return statusapi.PortTraffic{
			Namespace: "shop", Name: name, Port: "http", Protocol: "TCP", Endpoint: endpoint,
			Traffic: statusapi.Traffic{Connections: &conns, Active: new(uint64(3)), Failed: &failed, BytesIn: &in, Refused: refused},
		}
	}
	l := statusapi.TrafficList{Counted: now.Add(time.Duration(n) * 2 * time.Second)}
	l.Items = append(l.Items, port("cart", "", 100+n*30, 5_000_000*n, nil), port("cart", "10.0.0.1:80", 100+n*30, 0, nil))
	if n > 0 {
		l.Items = append(l.Items, port("new", "", 7, 0, map[string]uint64{"NoEndpoints": 40}))
	}
	l.Total = len(l.Items)
	return l
}

func TestTop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := uint64(0)
		d := &daemon{answers: map[string]any{statusapi.TrafficPath: func() any { looks++; return counted(looks - 1) }}}
		var b strings.Builder
		if err := top(t.Context(), &b, TrafficOf(d), TopOptions{SortBy: "refused", Period: 2 * time.Second}, nil); err != nil {
			t.Fatal(err)
		}
		want := `2 lines with traffic, 03:04:05 to 03:04:07; by refused
SERVICE     PORT       NEW/S   ACTIVE   IN B/S   OUT B/S   REFUSED/S   TOTAL
shop/new    http/TCP   3.5     3        0        -         20          7
shop/cart   http/TCP   15      3        2500k    -         0           130
`
		if diff := cmp.Diff(want, b.String()); diff != "" {
			t.Errorf("top mismatch (-want +got):\n%s", diff)
		}
		b.Reset()
		looks = 0
		if err := top(t.Context(), &b, TrafficOf(d), TopOptions{SortBy: "new", Period: 2 * time.Second, Endpoints: true}, nil); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), "OUT B/S   FAILED/S   TOTAL\nshop/cart   http/TCP   10.0.0.1:80   15      3        0        -         1.5        130\n") || strings.Contains(b.String(), "shop/new") {
			t.Errorf("endpoints: %s", b.String())
		}
	})
}

// TestTopFitsTheScreen checks that no line wraps, which would push the title off the
// screen, and that the numbers are visible, however long names are.
func TestTopFitsTheScreen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := uint64(0)
		long := strings.Repeat("x", 61)
		d := &daemon{answers: map[string]any{statusapi.TrafficPath: func() any {
			l := counted(looks)
			looks++
			for i := range l.Items {
				l.Items[i].Namespace, l.Items[i].Name = long, long[len(l.Items[i].Name):]+l.Items[i].Name
			}
			return l
		}}}
		sizes := []screen{{columns: 80, lines: 24}, {columns: 100, lines: 24}, {columns: 30, lines: 24}, {}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(len(sizes))*2*time.Second+time.Second)
		defer cancel()
		frames := 0
		var b strings.Builder
		if err := top(ctx, &b, TrafficOf(d), TopOptions{SortBy: "name", Period: 2 * time.Second}, func() screen { frames++; return sizes[frames-1] }); err != nil {
			t.Fatal(err)
		}
		for i, frame := range strings.Split(b.String(), "\x1b[H")[1:] {
			for line := range strings.Lines(frame) {
				line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\x1b[K")
				if n := utf8.RuneCountInString(line); sizes[i].columns > 0 && n >= sizes[i].columns {
					t.Errorf("%d columns on a screen of %d: %s", n, sizes[i].columns, line)
				}
			}
			if sizes[i].columns != 30 && !strings.Contains(frame, "2500k") {
				t.Errorf("the numbers are not visible:\n%s", frame)
			}
		}
	})
}

// paged is a daemon that answers page by page.
type paged struct {
	total int
	item  func(i int) statusapi.PortTraffic
}

func (p paged) Get(_ context.Context, _ string, query url.Values, to any) error {
	list := statusapi.TrafficList{Counted: time.Now(), Total: p.total}
	from, _ := strconv.Atoi(query.Get("continue"))
	limit, err := strconv.Atoi(query.Get("limit"))
	for i := from; i < min(from+limit, p.total); i++ {
		list.Items = append(list.Items, p.item(i))
	}
	if from+limit < p.total {
		list.Continue = strconv.Itoa(from + limit)
	}
	*to.(*statusapi.TrafficList) = list
	return err
}

// TestTopOfMany checks that the busiest of many Services comes first although it is
// the last by name.
func TestTopOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		d := paged{10_001, func(i int) statusapi.PortTraffic {
			n := uint64(i / 10_000 * int(time.Since(start).Seconds()))
			return statusapi.PortTraffic{Namespace: "shop", Name: fmt.Sprintf("s-%05d", i), Traffic: statusapi.Traffic{Connections: &n}}
		}}
		var b strings.Builder
		if err := top(t.Context(), &b, TrafficOf(d), TopOptions{SortBy: "new", Period: 2 * time.Second}, nil); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(b.String(), "\n")
		if !strings.HasPrefix(lines[0], "10,001 lines") || !strings.HasPrefix(lines[2], "shop/s-10000 ") || len(lines) != 10_001+3 {
			t.Errorf("%q", lines)
		}
	})
}

func TestTopIsLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := uint64(0)
		d := &daemon{answers: map[string]any{statusapi.TrafficPath: func() any { looks++; return counted(looks - 1) }}}
		ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
		defer cancel()
		var b strings.Builder
		if err := top(ctx, &b, TrafficOf(d), TopOptions{SortBy: "name", Period: 2 * time.Second}, func() screen { return screen{lines: 5} }); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(b.String(), "\x1b[H"); n != 4 || !strings.Contains(b.String(), "and 1 more") {
			t.Errorf("%d frames: %q", n, b.String())
		}
	})
}

func TestTopWithoutCounts(t *testing.T) {
	d := &daemon{answers: map[string]any{statusapi.TrafficPath: statusapi.TrafficList{Off: "--service-traffic is off"}}}
	if err := top(t.Context(), &strings.Builder{}, TrafficOf(d), TopOptions{SortBy: "new", Period: time.Second}, nil); err == nil || !strings.Contains(err.Error(), "--service-traffic is off") {
		t.Errorf("%v", err)
	}
	if err := (&TopOptions{SortBy: "size", Period: time.Second}).Check(); err == nil || !strings.Contains(err.Error(), "size") {
		t.Errorf("%v", err)
	}
}
