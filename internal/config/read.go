package config

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// Configuration fills in every default. The mode is that of an operator who
// has asked for none; whether there is such a mode is not checked. The error is
// [FieldErrors].
func (in Input) Configuration(unset ProxyMode) (Configuration, error) {
	r := reader{Input: in, o: in.Object.DeepCopy()}
	r.c = Configuration{Object: r.o, Mode: cmp.Or(in.Object.Mode, unset), given: in.Given}
	defaults := Defaults()
	for field := range flatten(defaults) {
		// An empty text says nothing, even in a flag.
		v := At(r.o, field)
		if v.IsZero() && (v.Kind() == reflect.String || !in.Given[field]) && !strings.HasPrefix(field, "logging.") {
			v.Set(At(defaults, field))
		}
	}
	logsapi.SetRecommendedLoggingConfiguration(&r.o.Logging)
	r.bounds()
	var err error
	r.c.gates, err = NewGates(r.o.FeatureGates)
	r.check("featureGates", GatesText(r.o.FeatureGates), err)
	if r.c.Mode == IPVS && r.c.gates != nil && !r.c.gates.Enabled(GateIPVS) {
		r.invalid("mode", IPVS, "is switched off by feature gate %s", GateIPVS)
	}
	r.addresses()
	r.detectLocal()
	r.nodePorts()
	r.sections()
	r.winkernel()
	if len(r.errs) > 0 {
		return r.c, r.errs
	}
	return r.c, nil
}

// reader is an Input on its way to a Configuration.
type reader struct {
	Input                                  // as it was said
	o     *v1alpha1.KubeProxyConfiguration // with the defaults
	c     Configuration
	errs  FieldErrors
}

func (r *reader) invalid(field string, value any, format string, args ...any) {
	r.check(field, value, fmt.Errorf(format, args...))
}

// check notes what is wrong with a field, if anything is.
func (r *reader) check(field string, value any, err error) {
	if err != nil {
		r.errs = append(r.errs, &FieldError{field, fmt.Sprint(value), err.Error()})
	}
}

// isSet reports whether an operator has said anything about a field.
func (r *reader) isSet(field string) bool { return r.Given[field] || !At(&r.Object, field).IsZero() }

// anyMore is no upper bound.
const anyMore = math.MaxInt64

// numbers are what numbers and times may be, by field.
var numbers = []struct {
	field    string
	min, max int64
}{
	{"clientConnection.burst", 0, anyMore},
	{"configSyncPeriod", 1, anyMore},
	{"oomScoreAdj", -1000, 1000},
	{"iptables.masqueradeBit", 0, 31},
	{"nftables.masqueradeBit", 0, 31},
	{"ipvs.tcpTimeout", 0, anyMore},
	{"ipvs.tcpFinTimeout", 0, anyMore},
	{"ipvs.udpTimeout", 0, anyMore},
	{"conntrack.maxPerCore", 0, anyMore},
	{"conntrack.min", 0, anyMore},
	{"conntrack.tcpEstablishedTimeout", 0, anyMore},
	{"conntrack.tcpCloseWaitTimeout", 0, anyMore},
	{"conntrack.udpTimeout", 0, anyMore},
	{"conntrack.udpStreamTimeout", 0, anyMore},
}

// bounds checks what needs no reading.
func (r *reader) bounds() {
	if name := r.o.HostnameOverride; name != "" && strings.TrimSpace(name) == "" {
		r.invalid("hostnameOverride", name, "a node name cannot be blank")
	}
	if qps := float64(r.o.ClientConnection.QPS); math.IsNaN(qps) || math.IsInf(qps, 0) {
		r.invalid("clientConnection.qps", qps, "not a number")
	}
	for _, b := range numbers {
		section, _, _ := strings.Cut(b.field, ".")
		if m := ProxyMode(section); m != r.c.Mode && (m == NFTables || m == IPVS) {
			continue // it is not read
		}
		v := reflect.Indirect(At(r.o, b.field))
		if v.Kind() == reflect.Struct {
			v = v.Field(0) // of a metav1.Duration
		}
		switch n := v.Int(); {
		case n >= b.min && n <= b.max:
		case b.max != anyMore:
			r.invalid(b.field, v, "must be from %d to %d", b.min, b.max)
		case b.min == 0:
			r.invalid(b.field, v, "must not be negative")
		default:
			r.invalid(b.field, v, "must be more than 0")
		}
	}
	if v := r.o.ShowHiddenMetricsForVersion; v != "" && v != previousMinor && v != minorBefore {
		r.invalid("showHiddenMetricsForVersion", v, "must be %s, the minor version before this one, or nothing", previousMinor)
	}
}

// addresses reads where to listen.
func (r *reader) addresses() {
	var err error
	r.c.BindAddress, err = parseBindAddress(r.o.BindAddress)
	r.check("bindAddress", r.o.BindAddress, err)
	every, loopback := netip.IPv4Unspecified(), netip.AddrFrom4([4]byte{127, 0, 0, 1})
	// The flags' defaults are those of their help text whatever other flags say.
	if ip, ok := parseAddr(r.o.BindAddress); ok && !ip.Is4() && r.Given == nil {
		every, loopback = netip.IPv6Unspecified(), netip.IPv6Loopback()
	}
	server := func(field string, text *string, unset netip.AddrPort) netip.AddrPort {
		a := unset
		switch {
		case *text == None || *text == "" && r.Given[field]:
			a = netip.AddrPort{}
		case *text != "":
			a, err = parseServer(*text, unset.Port())
			r.check(field, *text, err)
		}
		*text = serverString(a)
		return a
	}
	r.c.HealthzBindAddress = server("healthzBindAddress", &r.o.HealthzBindAddress, netip.AddrPortFrom(every, HealthzPort))
	r.c.MetricsBindAddress = server("metricsBindAddress", &r.o.MetricsBindAddress, netip.AddrPortFrom(loopback, MetricsPort))
	if a := r.c.MetricsBindAddress; a.IsValid() && a == r.c.HealthzBindAddress {
		r.invalid("metricsBindAddress", a, "is the health server's address already")
	}
}

func (r *reader) detectLocal() {
	cidrs, err := parseClusterCIDRs(r.o.ClusterCIDR)
	bridge, prefix := r.o.DetectLocal.BridgeInterface, r.o.DetectLocal.InterfaceNamePrefix
	switch m := r.o.DetectLocalMode; m {
	case LocalModeClusterCIDR:
		r.check("clusterCIDR", r.o.ClusterCIDR, err)
	case LocalModeNodeCIDR:
	case LocalModeBridgeInterface:
		r.check("detectLocal.bridgeInterface", bridge, checkInterface(bridge, m))
	case LocalModeInterfaceNamePrefix:
		r.check("detectLocal.interfaceNamePrefix", prefix, checkInterface(prefix, m))
	default:
		r.invalid("detectLocalMode", m, "no such mode; modes: %s, %s, %s, %s", LocalModeClusterCIDR, LocalModeNodeCIDR,
			LocalModeBridgeInterface, LocalModeInterfaceNamePrefix)
	}
	r.c.ClusterCIDRs = cidrs // none if they are invalid, which they may be where they are not read
}

// nodePorts reads which addresses take NodePorts. An operator who left the mode
// open has them where kube-proxy's default, iptables, does. In mode ipvs loopback
// never takes any.
func (r *reader) nodePorts() {
	named := r.Object.Mode == NFTables
	r.c.LocalhostNodePorts = *r.o.IPTables.LocalhostNodePorts && !named && r.c.Mode != IPVS
	if len(r.o.NodePortAddresses) == 0 {
		if named {
			r.c.NodePortAddresses.Primary, r.o.NodePortAddresses = true, []string{Primary}
		}
		return
	}
	var err error
	r.c.NodePortAddresses, err = parseNodePortAddresses(r.o.NodePortAddresses)
	r.check("nodePortAddresses", strings.Join(r.o.NodePortAddresses, ","), err)
	// Where nftables was named, loopback must be, too.
	if named && r.c.gates != nil {
		r.c.LocalhostNodePorts = r.c.gates.Enabled(GateLocalhostNodePorts) &&
			slices.ContainsFunc(r.c.NodePortAddresses.CIDRs, func(p netip.Prefix) bool { return p.Addr().IsLoopback() })
	}
}

// section returns a field with the section that the mode in force reads it from.
// Only the section nftables counts when a file names the mode. An operator who
// left the mode open wrote for iptables, kube-proxy's default, and means that in
// nftables too; and so do flags.
func (r *reader) section(field string) string {
	if r.c.Mode == NFTables && (r.Object.Mode == NFTables && r.Given == nil || !r.isSet("iptables."+field)) {
		return "nftables." + field
	}
	return "iptables." + field
}

// sections reads what each mode has a section for, and writes it into that of
// the mode in force, the periods into no other. A mode that was left open stays
// so in the object, since NodePorts depend on that too.
func (r *reader) sections() {
	r.periods()
	bit := reflect.Indirect(At(r.o, r.section("masqueradeBit"))).Int()
	r.c.MasqueradeBit = int(bit)
	r.c.MasqueradeAll = At(r.o, r.section("masqueradeAll")).Bool()
	mine := r.c.Mode
	if !slices.Contains(sections, mine) {
		mine = IPTables
	}
	for _, section := range sections {
		var every, least metav1.Duration
		if section == mine {
			every.Duration, least.Duration = r.c.SyncPeriod, r.c.MinSyncPeriod
		}
		At(r.o, string(section)+".syncPeriod").Set(reflect.ValueOf(every))
		At(r.o, string(section)+".minSyncPeriod").Set(reflect.ValueOf(least))
	}
	switch mine {
	case NFTables:
		r.o.NFTables.MasqueradeBit, r.o.NFTables.MasqueradeAll = new(int32(bit)), r.c.MasqueradeAll
		if r.o.Mode == "" {
			r.o.IPTables.MasqueradeBit = new(int32(bit)) // it comes first then
		}
	case IPVS:
		for _, item := range r.o.IPVS.ExcludeCIDRs {
			p, ok := ParsePrefix(item)
			if !ok {
				r.invalid("ipvs.excludeCIDRs", item, "not a CIDR like 192.0.2.0/24")
			}
			r.c.ExcludeCIDRs = append(r.c.ExcludeCIDRs, p)
		}
	}
}

// winkernel reads what is for mode kernelspace. Elsewhere it is not read, so that
// nodes of both systems can have one file.
func (r *reader) winkernel() {
	if r.c.Mode != Kernelspace {
		return
	}
	w := &r.o.Winkernel
	w.RootHnsEndpointName = cmp.Or(w.RootHnsEndpointName, rootEndpoint)
	if w.SourceVip == "" {
		return
	}
	ip, ok := parseAddr(w.SourceVip)
	if !ok || ip.IsUnspecified() {
		r.invalid("winkernel.sourceVip", w.SourceVip, "not an IP address that pods could see as their client")
	}
	r.c.SourceVIP = ip
}

func (r *reader) periods() {
	every, least := r.section("syncPeriod"), r.section("minSyncPeriod")
	r.c.SyncPeriod = UsualSyncPeriod
	switch r.c.Mode {
	case NFTables:
		r.c.SyncPeriod = nftablesSyncPeriod
	case IPVS:
		every, least = "ipvs.syncPeriod", "ipvs.minSyncPeriod"
		if r.Given != nil {
			r.c.MinSyncPeriod = time.Second
		}
	}
	for field, period := range map[string]*time.Duration{every: &r.c.SyncPeriod, least: &r.c.MinSyncPeriod} {
		if r.isSet(field) {
			*period = At(&r.Object, field).Interface().(metav1.Duration).Duration
		}
	}
	if r.c.SyncPeriod <= 0 {
		r.invalid(every, r.c.SyncPeriod, "must be more than 0")
	}
	switch {
	case r.c.MinSyncPeriod < 0:
		r.invalid(least, r.c.MinSyncPeriod, "must not be negative")
	case r.c.SyncPeriod > 0 && r.c.MinSyncPeriod > r.c.SyncPeriod:
		r.invalid(least, r.c.MinSyncPeriod, "must not be more than %s %v", every, r.c.SyncPeriod)
	}
}
