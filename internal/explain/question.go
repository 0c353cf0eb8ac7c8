package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/similar"
)

// Question describes the packet to explain, as on the command line. Only To is
// required.
type Question struct {
	To       string // ADDR:PORT, or NAMESPACE/NAME[:PORT] with the port's name or number
	From     string // the client's address; empty: the node itself
	Protocol string // tcp, udp or sctp; empty: that of the Service's port, or tcp
	In       string // the interface that the packet arrives on
}

// target is a parsed Question.
type target struct {
	dst     netip.AddrPort           // invalid if the Service has no address
	service types.NamespacedName     // empty if the question has an address
	port    *resolve.PortDescription // of service; nil if the question has an address
	proto   proxy.Protocol
	from    netip.Addr // invalid if not given
}

var protocols = map[string]proxy.Protocol{"tcp": proxy.TCP, "udp": proxy.UDP, "sctp": proxy.SCTP}

// parse parses the question. Its errors are for the user, and say what to write
// instead.
func (q Question) parse(w *World) (t target, err error) {
	if q.Protocol != "" {
		var known bool
		if t.proto, known = protocols[strings.ToLower(q.Protocol)]; !known {
			return t, fmt.Errorf("protocol %q is not tcp, udp or sctp", q.Protocol)
		}
	}
	if q.From != "" {
		if t.from, err = netip.ParseAddr(q.From); err != nil || t.from.Zone() != "" {
			return t, fmt.Errorf("the client %q is not an IP address", q.From)
		}
		t.from = t.from.Unmap()
	}
	if strings.Contains(q.To, "/") {
		return t, t.parseName(q.To, w)
	}
	if t.dst, err = netip.ParseAddrPort(q.To); err != nil || t.dst.Port() == 0 || t.dst.Addr().Zone() != "" {
		return t, fmt.Errorf("%q is not ADDR:PORT (10.96.0.10:80, [fd00::10]:80) or NAMESPACE/SERVICE[:PORT]", q.To)
	}
	t.dst = netip.AddrPortFrom(t.dst.Addr().Unmap(), t.dst.Port())
	t.proto = cmp.Or(t.proto, proxy.TCP)
	if t.from.IsValid() && proxy.FamilyOf(t.from) != proxy.FamilyOf(t.dst.Addr()) {
		return t, fmt.Errorf("the client %v is %v and %v is %v: a connection has one family, name an %v client",
			t.from, proxy.FamilyOf(t.from), t.dst, proxy.FamilyOf(t.dst.Addr()), proxy.FamilyOf(t.dst.Addr()))
	}
	return t, nil
}

// parseName finds the Service that text names, and its port.
func (t *target) parseName(text string, w *World) error {
	name, port, _ := strings.Cut(text, ":")
	namespace, name, _ := strings.Cut(name, "/")
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("%q is not NAMESPACE/SERVICE[:PORT]", text)
	}
	t.service = types.NamespacedName{Namespace: namespace, Name: name}
	ports, known := w.Resolver.Ports(t.service)
	if !known {
		if _, unserved := w.unserved(t.service); unserved {
			t.proto = cmp.Or(t.proto, proxy.TCP)
			return nil
		}
		return w.unknown(t.service)
	}
	if len(ports) == 0 {
		t.proto = cmp.Or(t.proto, proxy.TCP)
		return nil // It has no address here: the answer says so.
	}
	return t.choosePort(w, ports, port)
}

// unknown returns the error for a Service that does not exist, with the names of
// similar ones.
func (w *World) unknown(name types.NamespacedName) error {
	var elsewhere []string // Services of that name in other namespaces
	near := similar.Names(name.Name, func(yield func(string) bool) {
		for _, n := range w.Resolver.ServiceNames() {
			if n.Name == name.Name {
				elsewhere = append(elsewhere, n.String())
			} else if n.Namespace == name.Namespace {
				_ = yield(n.Name) // similar.Names takes all of them
			}
		}
	})
	for i := range near {
		near[i] = types.NamespacedName{Namespace: name.Namespace, Name: near[i]}.String()
	}
	slices.Sort(elsewhere)
	near = append(near, elsewhere...)
	e := &UnknownError{Name: name}
	switch {
	case len(near) > 0:
		e.hint = "; there is " + strings.Join(near[:min(3, len(near))], ", ")
	case w.Unserved == nil:
		e.hint = fmt.Sprintf(" that this node serves; headless Services, DNS aliases and Services of other proxies are not known here: "+
			"kubectl -n %s get service %s", name.Namespace, name.Name)
	}
	return e
}

// UnknownError is the error for a Service that is not known here.
type UnknownError struct {
	Name types.NamespacedName
	hint string
}

func (e *UnknownError) Error() string { return "no Service " + e.Name.String() + e.hint }

// choosePort chooses the port that text names or numbers, if text is not empty, and
// its family.
func (t *target) choosePort(w *World, ports []resolve.PortDescription, text string) error {
	fits := slices.DeleteFunc(slices.Clone(ports), func(p resolve.PortDescription) bool {
		k := p.Row.Key
		return t.proto != 0 && k.Protocol != t.proto || text != "" && k.Port != text && strconv.Itoa(int(p.Port)) != text
	})
	if len(fits) == 0 {
		if text == "" {
			text = t.proto.String()
		}
		return fmt.Errorf("no port %s of Service %v: it has %s", text, t.service, portList(ports))
	}
	fits = slices.DeleteFunc(fits, func(p resolve.PortDescription) bool {
		return t.from.IsValid() && p.Row.Key.Family != proxy.FamilyOf(t.from)
	})
	if len(fits) == 0 {
		return fmt.Errorf("the client %v is %v, and Service %v has no address of that family", t.from, proxy.FamilyOf(t.from), t.service)
	}
	if text == "" && slices.ContainsFunc(fits, func(p resolve.PortDescription) bool { return p.Port != fits[0].Port }) {
		return fmt.Errorf("which port of Service %v? Write %v:PORT; it has %s", t.service, t.service, portList(ports))
	}
	tcp := slices.IndexFunc(fits, func(p resolve.PortDescription) bool { return p.Row.Key.Protocol == proxy.TCP })
	p, _ := w.Resolver.DescribePort(fits[max(0, tcp)].Row.Key)
	t.port, t.proto, t.dst = &p, p.Row.Key.Protocol, p.Frontends[0].Addr
	return nil
}

// portList returns the ports of a Service, each once.
func portList(ports []resolve.PortDescription) string {
	var out []string
	for _, p := range ports {
		text := fmt.Sprintf("%d/%v", p.Port, p.Row.Key.Protocol)
		if name := p.Row.Key.Port; name != "" {
			text = fmt.Sprintf("%s (%s)", name, text)
		}
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return strings.Join(out, ", ")
}
