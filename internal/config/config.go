package config

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/component-base/featuregate"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// Input is what an operator has said, in flags or in a file. The zero value is
// an operator who has said nothing.
type Input struct {
	// Object has a zero field where nothing was said. In a file a zero counts
	// as nothing too: kubeadm writes out every field.
	Object v1alpha1.KubeProxyConfiguration

	// Given are the fields that flags have set, be it to zero; nil: the Object
	// does not come from flags. Those have no section for mode nftables: it
	// reads the section of mode iptables.
	Given map[string]bool
}

// Configuration is everything the daemon can be told. It is never changed once
// made.
type Configuration struct {
	// Object is the file that asks for exactly this, with every default filled
	// in. The fields below are what it means where that is more than its text.
	Object *v1alpha1.KubeProxyConfiguration

	Mode               ProxyMode
	BindAddress        netip.Addr     // the node's, whatever its Node says; the zero value: as the Node says
	HealthzBindAddress netip.AddrPort // the zero value: no health server
	MetricsBindAddress netip.AddrPort // the zero value: no metrics server
	ClusterCIDRs       []netip.Prefix
	NodePortAddresses  NodePortAddresses
	LocalhostNodePorts bool           // NodePorts on 127.0.0.0/8 too, where NodePortAddresses have it
	ExcludeCIDRs       []netip.Prefix // what mode ipvs leaves alone
	SourceVIP          netip.Addr     // what pods of overlay networks see as their client, in mode kernelspace; the zero value: none
	MasqueradeAll      bool
	MasqueradeBit      int           // the bit of the packet mark that asks for masquerading
	MinSyncPeriod      time.Duration // from the end of one sync to the start of the next; 0: as soon as the last one is done
	SyncPeriod         time.Duration // from one full sync to the next

	given map[string]bool
	gates featuregate.MutableFeatureGate
}

// Gates returns the feature gates, which do not change any more.
func (c *Configuration) Gates() featuregate.MutableFeatureGate { return c.gates }

// Explicit reports whether an operator has asked for the value of a field. What
// was not asked for must not take away what an administrator has set by other
// means. The default in a file counts as not asked for: whoever writes the
// effective configuration to a file writes all defaults.
func (c *Configuration) Explicit(field string) bool {
	return c.given[field] || !reflect.DeepEqual(At(c.Object, field).Interface(), At(Defaults(), field).Interface())
}

// NodePortAddresses says which addresses of the node take NodePorts. The zero
// value is all of them.
type NodePortAddresses struct {
	Primary bool           // the node's own addresses
	CIDRs   []netip.Prefix // and those within; a family without any, unless Primary: every local address of it
}

// String returns the addresses as a file names them.
func (n NodePortAddresses) String() string {
	words := strings.Trim(fmt.Sprint(n.CIDRs), "[]")
	if n.Primary {
		words = strings.TrimSpace(Primary + " " + words)
	}
	return cmp.Or(words, All)
}

// At returns a field by the name that a file gives it, like conntrack.min. The
// names of Go differ from those in case only.
func At(o *v1alpha1.KubeProxyConfiguration, field string) reflect.Value {
	v := reflect.ValueOf(o).Elem()
	for name := range strings.SplitSeq(field, ".") {
		v = v.FieldByNameFunc(func(s string) bool { return strings.EqualFold(s, name) })
	}
	return v
}

// FieldError says what is wrong with a field.
type FieldError struct {
	Field  string // as a file names it
	Value  string
	Reason string
}

func (e *FieldError) Error() string { return fmt.Sprintf("%s %q: %s", e.Field, e.Value, e.Reason) }

// FieldErrors is all that is wrong with a configuration.
type FieldErrors []*FieldError

func (list FieldErrors) Error() string {
	var lines []string
	for _, e := range list {
		lines = append(lines, e.Error())
	}
	return strings.Join(lines, "\n")
}

// Change is a difference between two configurations.
type Change struct {
	Field string // without the section of a mode
	Old   string
	New   string
	Live  bool // a running daemon can take it over
}

func (c Change) String() string { return fmt.Sprintf("%s from %q to %q", c.Field, c.Old, c.New) }

// live are the fields that a running daemon can take over.
var live = []string{
	"logging.verbosity", "healthzBindAddress", "metricsBindAddress", "clusterCIDR", "detectLocalMode",
	"detectLocal.bridgeInterface", "detectLocal.interfaceNamePrefix", "nodePortAddresses", "masqueradeAll",
	"minSyncPeriod", "syncPeriod",
}

// Changes returns what differs between two configurations, in a fixed order:
// first what a running daemon can take over, and of the rest first the mode,
// which much else depends on.
func Changes(old, now *Configuration) []Change {
	before, after := old.meaning(), now.meaning()
	all := maps.Clone(before)
	maps.Copy(all, after)
	var out []Change
	for _, field := range slices.Concat(live, []string{"mode"}, slices.Sorted(maps.Keys(all))) {
		if before[field] != after[field] {
			// HNS has the health server's port in load balancers.
			held := field == "healthzBindAddress" && now.Object.Winkernel.ForwardHealthCheckVip
			out = append(out, Change{field, before[field], after[field], slices.Contains(live, field) && !held})
		}
		delete(before, field)
		delete(after, field)
	}
	return out
}

// meaning returns the fields of a configuration as text: what was read of them
// where different texts mean the same, and their text elsewhere.
func (c *Configuration) meaning() map[string]string {
	out := flatten(c.Object)
	for _, section := range sections {
		for _, name := range []string{"masqueradeAll", "masqueradeBit", "minSyncPeriod", "syncPeriod"} {
			delete(out, string(section)+"."+name) // which of them counts depends on the mode
		}
	}
	maps.Copy(out, map[string]string{
		"mode":                        string(c.Mode),
		"bindAddress":                 c.BindAddress.String(),
		"healthzBindAddress":          serverString(c.HealthzBindAddress),
		"metricsBindAddress":          serverString(c.MetricsBindAddress),
		"clusterCIDR":                 fmt.Sprint(c.ClusterCIDRs),
		"ipvs.excludeCIDRs":           fmt.Sprint(c.ExcludeCIDRs),
		"winkernel.sourceVip":         c.SourceVIP.String(),
		"nodePortAddresses":           c.NodePortAddresses.String(),
		"iptables.localhostNodePorts": fmt.Sprint(c.LocalhostNodePorts),
		"masqueradeAll":               fmt.Sprint(c.MasqueradeAll),
		"masqueradeBit":               fmt.Sprint(c.MasqueradeBit),
		"minSyncPeriod":               c.MinSyncPeriod.String(),
		"syncPeriod":                  c.SyncPeriod.String(),
	})
	return out
}

// ProxyMode is a way of programming the kernel, as operators spell it.
type ProxyMode = v1alpha1.ProxyMode

const (
	NFTables  ProxyMode = "nftables"
	IPTables  ProxyMode = "iptables"
	IPVS      ProxyMode = "ipvs"
	EBPF      ProxyMode = "ebpf"
	Userspace ProxyMode = "userspace"

	Kernelspace ProxyMode = "kernelspace" // of Windows
)

// sections are the modes that have a section in a file.
var sections = []ProxyMode{IPTables, NFTables, IPVS}

// The ways of recognising the traffic of our pods, as operators spell them.
const (
	LocalModeClusterCIDR         v1alpha1.LocalMode = "ClusterCIDR" // the default
	LocalModeNodeCIDR            v1alpha1.LocalMode = "NodeCIDR"
	LocalModeBridgeInterface     v1alpha1.LocalMode = "BridgeInterface"
	LocalModeInterfaceNamePrefix v1alpha1.LocalMode = "InterfaceNamePrefix"
)
