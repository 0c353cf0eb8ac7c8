package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/klog/v2"

	"sluice/internal/apiclient"
	"sluice/internal/dataplane/mode"
	"sluice/internal/engine"
	"sluice/internal/explain"
	"sluice/internal/kernel/ct"
	"sluice/internal/kernel/link"
	"sluice/internal/proxy"
	"sluice/internal/source/manifest"
	"sluice/internal/statusapi"
)

// maxFlowsListed is how many open flows an explanation lists.
const maxFlowsListed = 16

// explainer returns the function that answers explain queries from the engine's
// state and, if a row is found, from the kernel.
func (s *ProxyServer) explainer(e *engine.Engine) func(context.Context, url.Values) (*statusapi.Explanation, error) {
	return func(ctx context.Context, q url.Values) (*statusapi.Explanation, error) {
		port, err := clientPort(q)
		if err != nil {
			return nil, err
		}
		links := nodeLinks{ask: link.Conn{}.Local}
		question := explain.Question{To: q.Get("to"), From: q.Get("from"), Protocol: q.Get("proto"), In: q.Get("in")}
		a, err := s.answer(e, question, nil, &links)
		if errors.As(err, new(*explain.UnknownError)) || err == nil && a.NoServiceFound() {
			if unserved := s.plan.source.unserved(ctx, question.To, s.families); unserved != nil {
				a, err = s.answer(e, question, unserved, &links)
			}
		}
		if links.err != nil {
			return nil, links.err
		}
		if err != nil {
			return nil, &statusapi.ResponseError{Code: http.StatusBadRequest, Message: err.Error()}
		}
		if what, ok := a.Inspection(); ok {
			a.Compare(e.Inspect(ctx, what))
			s.addOpenFlows(ctx, a, port)
		}
		return a.Explanation, nil
	}
}

// answer answers a question from the engine's state. It repeats that, in most cases
// once, to ask the kernel about addresses while it does not hold the engine's lock.
func (s *ProxyServer) answer(e *engine.Engine, q explain.Question, unserved []explain.Unserved, links *nodeLinks) (a *explain.Answer, err error) {
	for {
		e.Look(func(v engine.View) {
			w := explain.World{
				Resolver: v.Resolver, Mode: string(s.plan.config.Mode), View: &v, Families: s.families, Unserved: unserved,
				Local: func(a netip.Addr) bool { return links.of(a) != "" },
				Held:  func(a netip.Addr) bool { return links.of(a) == mode.IPVSLink },
			}
			a, err = w.Explain(q)
		})
		if !links.read() {
			return a, err
		}
	}
}

// nodeLinks knows which link of the node has an address.
type nodeLinks struct {
	ask     func(netip.Addr) (string, error) // asks the kernel; "" if none has it
	known   map[netip.Addr]string
	missing []netip.Addr
	err     error // of the first question that failed; after it none is asked
}

// of returns the link that has an address, if that is known.
func (l *nodeLinks) of(a netip.Addr) string {
	name, known := l.known[a]
	if !known {
		l.missing = append(l.missing, a)
	}
	return name
}

// read asks the kernel for what was not known. It reports whether there is anything new.
func (l *nodeLinks) read() bool {
	if l.known == nil {
		l.known = map[netip.Addr]string{}
	}
	found := false
	for _, a := range l.missing {
		if _, known := l.known[a]; known || l.err != nil {
			continue
		}
		l.known[a], l.err = l.ask(a)
		found = true
	}
	l.missing = nil
	return found && l.err == nil
}

// clientPort returns the client's port in a query; 0 if there is none.
func clientPort(q url.Values) (uint16, error) {
	text := q.Get("port")
	if text == "" {
		return 0, nil
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return 0, &statusapi.ResponseError{Code: http.StatusBadRequest, Message: fmt.Sprintf("port %q: want the client's, from 1 to 65535", text)}
	}
	return uint16(port), nil
}

// relayTimeout limits how long the process is asked for connections that it relays.
const relayTimeout = 3 * time.Second

// addOpenFlows adds the client's open connections to an answer. The one from a port comes
// first, also if it has failed or ended.
func (s *ProxyServer) addOpenFlows(ctx context.Context, a *explain.Answer, port uint16) {
	a.Flows = &statusapi.OpenFlows{Except: s.mode.Unseen}
	if !a.Packet.Src.IsValid() {
		a.Flows.Unknown = "the client's address is not known"
		return
	}
	open, err := s.openFlows(ctx, a.Packet, port)
	if err != nil {
		a.Flows.Unknown = err.Error()
	}
	if i := slices.IndexFunc(open, func(f proxy.RelayedFlow) bool { return f.Client.Port() == port }); i > 0 {
		open[0], open[i] = open[i], open[0]
	}
	a.Flows.Total = len(open)
	for _, f := range open[:min(len(open), maxFlowsListed)] {
		a.Flows.Items = append(a.Flows.Items, statusapi.OpenFlow{
			Client: f.Client.String(), Endpoint: f.Endpoint.String(), Stale: !a.IsCandidate(f.Endpoint),
		})
	}
}

// openFlows returns the open connections of a packet's client to its destination, and the
// one from a port even if it has failed or ended.
func (s *ProxyServer) openFlows(ctx context.Context, p proxy.Packet, port uint16) (open []proxy.RelayedFlow, err error) {
	if r, ok := s.dataplane.(proxy.Relayer); ok {
		ctx, cancel := context.WithTimeout(ctx, relayTimeout)
		defer cancel()
		return r.Relayed(ctx, p.Protocol, p.Src, p.Dst)
	}
	if s.mode.Flows == nil {
		return nil, errors.New("this mode carries connections itself")
	}
	flows, err := s.mode.Flows()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, flows.Close()) }()
	f := ct.Filter{IPv6: p.Dst.Addr().Is6(), Protocol: uint8(p.Protocol), Src: p.Src, Dst: p.Dst}
	all, err := flows.Dump(ctx, f, func(f *ct.Flow) bool { return f.Translated && (!f.Closed || f.Orig.Src.Port() == port) })
	for _, f := range all {
		open = append(open, proxy.RelayedFlow{Client: f.Orig.Src, Endpoint: f.Reply.Src})
	}
	return open, err
}

// unservedTimeout limits a request for Services that are not served.
const unservedTimeout = 3 * time.Second

// unserved returns Services that this proxy does not serve and that match the
// target of a query, a name or an address. They are not watched, so they are read
// when a query needs them. It returns nil if they cannot be read.
func (s objectSource) unserved(ctx context.Context, to string, families []proxy.Family) []explain.Unserved {
	if s.manifests != "" {
		return s.unservedOfFolder(ctx, families)
	}
	request := s.client.Get().AbsPath(apiclient.Path("")).Resource("services").Param("limit", "10")
	name, _, _ := strings.Cut(to, ":")
	namespace, name, named := strings.Cut(name, "/")
	at, err := netip.ParseAddrPort(to)
	switch {
	case err == nil:
		request = request.Param("fieldSelector", fields.OneTermEqualSelector("spec.clusterIP", at.Addr().String()).String())
	case named:
		request = request.Namespace(namespace).Param("fieldSelector", fields.OneTermEqualSelector(metav1.ObjectNameField, name).String())
	default:
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, unservedTimeout)
	defer cancel()
	var list v1.ServiceList
	if err := request.Do(ctx).Into(&list); err != nil {
		klog.FromContext(ctx).V(2).Info("Could not ask the API server for Services that are not served", "target", to, "err", err)
		return nil
	}
	objects := make([]metav1.Object, 0, len(list.Items))
	for i := range list.Items {
		objects = append(objects, &list.Items[i])
	}
	return unserved(objects, families)
}

func (s objectSource) unservedOfFolder(ctx context.Context, families []proxy.Family) []explain.Unserved {
	select { // one at a time, because reading a folder takes ten times its size in memory
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	case <-ctx.Done():
		return nil
	}
	objects, _, err := manifest.Load(s.manifests)
	if err != nil {
		return nil
	}
	return unserved(objects, families)
}
