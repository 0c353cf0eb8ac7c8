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

// Configuration fills in all defaults, and validates and parses the fields. If the
// input has no mode, it is defaultMode; whether the mode exists is not checked. The
// error is of type [FieldErrors].
func (in Input) Configuration(defaultMode ProxyMode) (Configuration, error) {
	r := reader{Input: in, o: in.Object.DeepCopy()}
	r.c = Configuration{Object: r.o, Mode: cmp.Or(in.Object.Mode, defaultMode), given: in.Given}
	defaults := Defaults()
	for field := range flatten(defaults) {
		// An empty string counts as not set, even if a flag sets it.
		v := Field(r.o, field)
		if v.IsZero() && (v.Kind() == reflect.String || !in.Given[field]) && !strings.HasPrefix(field, "logging.") {
			v.Set(Field(defaults, field))
		}
	}
	logsapi.SetRecommendedLoggingConfiguration(&r.o.Logging)
	r.checkBounds()
	var err error
	r.c.gates, err = NewGates(r.o.FeatureGates)
	r.check("featureGates", GatesText(r.o.FeatureGates), err)
	if r.c.Mode == IPVS && r.c.gates != nil && !r.c.gates.Enabled(GateIPVS) {
		r.invalid("mode", IPVS, "disabled by feature gate %s", GateIPVS)
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

// reader turns an Input into a Configuration.
type reader struct {
	Input
	o    *v1alpha1.KubeProxyConfiguration // the input's Object with the defaults
	c    Configuration
	errs FieldErrors
}

func (r *reader) invalid(field string, value any, format string, args ...any) {
	r.check(field, value, fmt.Errorf(format, args...))
}

// check adds an error about a field, unless err is nil.
func (r *reader) check(field string, value any, err error) {
	if err != nil {
		r.errs = append(r.errs, &FieldError{field, fmt.Sprint(value), err.Error()})
	}
}

// isSet reports whether the input sets a field.
func (r *reader) isSet(field string) bool { return r.Given[field] || !Field(&r.Object, field).IsZero() }

// unlimited means that there is no upper bound.
const unlimited = math.MaxInt64

// bounds are the limits of numbers and durations.
var bounds = []struct {
	field    string
	min, max int64
}{
	{"clientConnection.burst", 0, unlimited},
	{"configSyncPeriod", 1, unlimited},
	{"oomScoreAdj", -1000, 1000},
	{"iptables.masqueradeBit", 0, 31},
	{"nftables.masqueradeBit", 0, 31},
	{"ipvs.tcpTimeout", 0, unlimited},
	{"ipvs.tcpFinTimeout", 0, unlimited},
	{"ipvs.udpTimeout", 0, unlimited},
	{"conntrack.maxPerCore", 0, unlimited},
	{"conntrack.min", 0, unlimited},
	{"conntrack.tcpEstablishedTimeout", 0, unlimited},
	{"conntrack.tcpCloseWaitTimeout", 0, unlimited},
	{"conntrack.udpTimeout", 0, unlimited},
	{"conntrack.udpStreamTimeout", 0, unlimited},
}

// checkBounds validates fields that are not parsed.
func (r *reader) checkBounds() {
	if name := r.o.HostnameOverride; name != "" && strings.TrimSpace(name) == "" {
		r.invalid("hostnameOverride", name, "a node name cannot be blank")
	}
	if qps := float64(r.o.ClientConnection.QPS); math.IsNaN(qps) || math.IsInf(qps, 0) {
		r.invalid("clientConnection.qps", qps, "must be a finite number")
	}
	for _, b := range bounds {
		section, _, _ := strings.Cut(b.field, ".")
		if m := ProxyMode(section); m != r.c.Mode && (m == NFTables || m == IPVS) {
			continue // only its own mode uses the section
		}
		v := reflect.Indirect(Field(r.o, b.field))
		if v.Kind() == reflect.Struct {
			v = v.Field(0) // the time.Duration of a metav1.Duration
		}
		switch n := v.Int(); {
		case n >= b.min && n <= b.max:
		case b.max != unlimited:
			r.invalid(b.field, v, "must be from %d to %d", b.min, b.max)
		case b.min == 0:
			r.invalid(b.field, v, "must not be negative")
		default:
			r.invalid(b.field, v, "must be more than 0")
		}
	}
	if v := r.o.ShowHiddenMetricsForVersion; v != "" && v != previousMinor && v != minorBefore {
		r.invalid("showHiddenMetricsForVersion", v, "must be %s, the minor version before this one, or empty", previousMinor)
	}
}

// addresses parses the addresses of the node and of servers.
func (r *reader) addresses() {
	var err error
	r.c.BindAddress, err = parseBindAddress(r.o.BindAddress)
	r.check("bindAddress", r.o.BindAddress, err)
	unspecified, loopback := netip.IPv4Unspecified(), netip.AddrFrom4([4]byte{127, 0, 0, 1})
	// Without a file, the defaults are those that help shows, whatever bindAddress is.
	if ip, ok := parseAddr(r.o.BindAddress); ok && !ip.Is4() && r.Given == nil {
		unspecified, loopback = netip.IPv6Unspecified(), netip.IPv6Loopback()
	}
	server := func(field string, text *string, byDefault netip.AddrPort) netip.AddrPort {
		a := byDefault
		switch {
		case *text == None || *text == "" && r.Given[field]:
			a = netip.AddrPort{}
		case *text != "":
			a, err = parseServer(*text, byDefault.Port())
			r.check(field, *text, err)
		}
		*text = serverString(a)
		return a
	}
	r.c.HealthzBindAddress = server("healthzBindAddress", &r.o.HealthzBindAddress, netip.AddrPortFrom(unspecified, HealthzPort))
	r.c.MetricsBindAddress = server("metricsBindAddress", &r.o.MetricsBindAddress, netip.AddrPortFrom(loopback, MetricsPort))
	if a := r.c.MetricsBindAddress; a.IsValid() && a == r.c.HealthzBindAddress {
		r.invalid("metricsBindAddress", a, "the health server has the same address")
	}
}

// detectLocal validates how traffic of this node's pods is recognised.
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
	r.c.ClusterCIDRs = cidrs // nil if they are invalid, which is allowed if the mode does not use them
}

// nodePorts parses the addresses on which NodePorts are open. If the input has no
// mode, they are those of kube-proxy's default, iptables, even if the mode in force
// is nftables. In modes ipvs and kernelspace, loopback addresses are never among them.
func (r *reader) nodePorts() {
	setNFTables := r.Object.Mode == NFTables
	opens := *r.o.IPTables.LocalhostNodePorts && !setNFTables && r.c.Mode != IPVS && r.c.Mode != Kernelspace
	r.c.LocalhostNodePorts = opens
	gated := setNFTables && r.c.gates != nil && r.c.gates.Enabled(GateLocalhostNodePorts)
	r.c.RefuseLoopback = gated
	if len(r.o.NodePortAddresses) == 0 {
		if setNFTables {
			r.c.NodePortAddresses.Primary, r.o.NodePortAddresses = true, []string{Primary}
		}
		return
	}
	var err error
	r.c.NodePortAddresses, err = parseNodePortAddresses(r.o.NodePortAddresses)
	r.check("nodePortAddresses", strings.Join(r.o.NodePortAddresses, ","), err)
	opens = opens || gated
	// A relay takes ports from other processes, so ::1 must be named; if the input sets
	// mode nftables, so must 127.0.0.0/8.
	names := func(is func(netip.Addr) bool) bool {
		return slices.ContainsFunc(r.c.NodePortAddresses.CIDRs, func(p netip.Prefix) bool { return p.Addr().IsLoopback() && is(p.Addr()) })
	}
	r.c.LocalhostNodePorts = opens && (!setNFTables || names(netip.Addr.Is4))
	r.c.RelayLoopback = opens && names(netip.Addr.Is6)
}

// section prefixes a field with the section that the mode in force uses: iptables or
// nftables. A file that sets mode nftables must use its section. Otherwise, mode
// nftables uses what the section iptables sets, too: an input without a mode was
// written for kube-proxy's default, iptables, and flags have no other section.
func (r *reader) section(field string) string {
	if r.c.Mode == NFTables && (r.Object.Mode == NFTables && r.Given == nil || !r.isSet("iptables."+field)) {
		return "nftables." + field
	}
	return "iptables." + field
}

// sections reads the fields that several modes have in sections of their own, and
// writes the values in force into the section of the mode in force; sync periods of
// the other sections are cleared. If the input has no mode, the object does not get
// one either, because NodePorts depend on that.
func (r *reader) sections() {
	r.periods()
	bit := reflect.Indirect(Field(r.o, r.section("masqueradeBit"))).Int()
	r.c.MasqueradeBit = int(bit)
	r.c.MasqueradeAll = Field(r.o, r.section("masqueradeAll")).Bool()
	current := r.c.Mode
	if !slices.Contains(sections, current) {
		current = IPTables
	}
	for _, section := range sections {
		var syncPeriod, minSyncPeriod metav1.Duration
		if section == current {
			syncPeriod.Duration, minSyncPeriod.Duration = r.c.SyncPeriod, r.c.MinSyncPeriod
		}
		Field(r.o, string(section)+".syncPeriod").Set(reflect.ValueOf(syncPeriod))
		Field(r.o, string(section)+".minSyncPeriod").Set(reflect.ValueOf(minSyncPeriod))
	}
	switch current {
	case NFTables:
		r.o.NFTables.MasqueradeBit, r.o.NFTables.MasqueradeAll = new(int32(bit)), r.c.MasqueradeAll
		if r.o.Mode == "" {
			r.o.IPTables.MasqueradeBit = new(int32(bit)) // without a mode it takes precedence, see section
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

// winkernel parses the section of mode kernelspace. Other modes ignore it, so that
// Linux and Windows nodes can share a file.
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
		r.invalid("winkernel.sourceVip", w.SourceVip, "must be an IP address that is not unspecified")
	}
	r.c.SourceVIP = ip
}

// periods reads the sync periods of the mode in force.
func (r *reader) periods() {
	syncField, minField := r.section("syncPeriod"), r.section("minSyncPeriod")
	r.c.SyncPeriod = DefaultSyncPeriod
	switch r.c.Mode {
	case NFTables:
		r.c.SyncPeriod = nftablesSyncPeriod
	case IPVS:
		syncField, minField = "ipvs.syncPeriod", "ipvs.minSyncPeriod"
		if r.Given != nil {
			r.c.MinSyncPeriod = time.Second
		}
	}
	for field, period := range map[string]*time.Duration{syncField: &r.c.SyncPeriod, minField: &r.c.MinSyncPeriod} {
		if r.isSet(field) {
			*period = Field(&r.Object, field).Interface().(metav1.Duration).Duration
		}
	}
	if r.c.SyncPeriod <= 0 {
		r.invalid(syncField, r.c.SyncPeriod, "must be more than 0")
	}
	switch {
	case r.c.MinSyncPeriod < 0:
		r.invalid(minField, r.c.MinSyncPeriod, "must not be negative")
	case r.c.SyncPeriod > 0 && r.c.MinSyncPeriod > r.c.SyncPeriod:
		r.invalid(minField, r.c.MinSyncPeriod, "must not be more than %s %v", syncField, r.c.SyncPeriod)
	}
}
