package page

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/status"
	"sluice/internal/status/page"
	"sluice/internal/statusapi"
)

// daemon answers as the real one does, with what a test puts into it.
type daemon struct {
	*httptest.Server

	mu          sync.Mutex
	node        statusapi.Node
	services    []statusapi.Service
	problems    []statusapi.Problem
	changes     []statusapi.Change
	explanation statusapi.Explanation
}

// newDaemon serves the page and a fake API. Change it under change.
func newDaemon(t *testing.T) *daemon {
	t.Helper()
	now := time.Now()
	d := &daemon{node: statusapi.Node{
		Name: "node-1", Version: "v1.4.0", Mode: "nftables", Families: []string{"IPv4"}, Source: "a folder", Started: now, Now: now,
		Health: statusapi.Health{Healthy: true, Live: true}, Sync: statusapi.Sync{Done: true, Last: &now},
	}}
	mux := http.NewServeMux()
	mux.Handle("/", page.Handler())
	handle(mux, d, "/v1/node", func(*http.Request) any { return d.counted() })
	handle(mux, d, "/v1/services", func(r *http.Request) any { return d.list(r) })
	handle(mux, d, "/v1/services/{namespace}/{name}", func(r *http.Request) any { return d.service(r.PathValue("namespace"), r.PathValue("name")) })
	handle(mux, d, "/v1/problems", func(*http.Request) any { return statusapi.ProblemList{Items: d.problems, Total: len(d.problems)} })
	handle(mux, d, "/v1/changes", func(*http.Request) any { return statusapi.ChangeList{Items: d.changes, Total: len(d.changes)} })
	handle(mux, d, "/v1/explain", func(*http.Request) any { return d.explanation })
	d.Server = httptest.NewServer(status.AllowHosts(mux))
	t.Cleanup(d.Close)
	return d
}

func handle(mux *http.ServeMux, d *daemon, path string, answer func(*http.Request) any) {
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		d.mu.Lock()
		defer d.mu.Unlock()
		a := answer(r)
		if _, failed := a.(statusapi.Error); failed {
			w.WriteHeader(http.StatusNotFound)
		}
		_ = json.NewEncoder(w).Encode(a)
	})
}

func (d *daemon) change(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

func (d *daemon) counted() statusapi.Node {
	n := d.node
	n.Now = time.Now()
	n.Counts.Services, n.Counts.Problems = len(d.services), len(d.problems)
	n.Verdict = n.Judge()
	return n
}

func (d *daemon) service(namespace, name string) any {
	for _, s := range d.services {
		if s.Namespace == namespace && s.Name == name {
			return s
		}
	}
	return statusapi.Error{Message: fmt.Sprintf("there is no Service %s/%s", namespace, name)}
}

// list answers with a page of Services: filter, problems, sort by name or
// connections, limit and continue.
func (d *daemon) list(r *http.Request) statusapi.ServiceList {
	q := r.URL.Query()
	var items []statusapi.ServiceSummary
	for _, s := range d.services {
		text := s.Namespace + "/" + s.Name + " " + s.Address + " " + strings.Join(s.Ports, " ")
		if strings.Contains(text, q.Get("filter")) && (q.Get("problems") == "" || s.Troubled()) {
			items = append(items, s.ServiceSummary)
		}
	}
	order, down := strings.CutPrefix(q.Get("sort"), "-")
	slices.SortStableFunc(items, func(a, b statusapi.ServiceSummary) int {
		c := cmp.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
		if order == "used" {
			c = cmp.Compare(a.Used, b.Used)
		}
		if down {
			c = -c
		}
		return c
	})
	list := statusapi.ServiceList{Items: []statusapi.ServiceSummary{}, Total: len(items)}
	from, _ := strconv.Atoi(q.Get("continue"))
	limit, _ := strconv.Atoi(q.Get("limit"))
	to := min(from+limit, len(items))
	list.Items = append(list.Items, items[min(from, to):to]...)
	if to < len(items) {
		list.Continue = strconv.Itoa(to)
	}
	return list
}

// web returns a Service with endpoints that are used, and others that are not.
func web(used ...string) statusapi.Service {
	since := time.Now().Add(-time.Hour)
	port := statusapi.Port{
		Name: "http", Protocol: "TCP", Family: "IPv4", Internal: "Cluster", External: "Local", Balancing: "random",
		Frontends: []statusapi.Frontend{
			{Kind: "ClusterIP", Address: "10.96.0.10:80"},
			{Kind: "LoadBalancer", Address: "198.51.100.80:80"},
			{Kind: "NodePort", Address: "0.0.0.0:30080"},
			{Kind: "ExternalIP", Address: "192.0.2.7:80", LostTo: "default/older"},
		},
		Status: statusapi.Status{State: statusapi.InForce, Since: &since},
	}
	for i, a := range used {
		port.Endpoints = append(port.Endpoints, statusapi.Endpoint{
			Address: a, Used: true, UsedLocal: i == 0, Local: i == 0, Ready: true, Serving: true, Slice: "web-1",
		})
	}
	port.Endpoints = append(port.Endpoints, statusapi.Endpoint{Address: "10.244.0.99:8080", Reason: "not ready", Slice: "web-1"})
	port.Total = len(port.Endpoints)
	state := statusapi.InForce
	if len(used) == 0 {
		state = statusapi.StateNoEndpoints
	}
	return statusapi.Service{
		ServiceSummary: statusapi.ServiceSummary{
			Namespace: "default", Name: "web", Address: "10.96.0.10", External: []string{"198.51.100.80"}, Ports: []string{"80:30080/TCP"},
			Used: len(used), Endpoints: port.Total, State: state, Since: since,
		},
		Rows: []statusapi.Port{port},
	}
}
