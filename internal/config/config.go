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

// Input has the values of flags or of a file. The zero value sets nothing.
type Input struct {
	// Object has a zero value in each field that is not set. A zero value in a file
	// counts as not set, too, because kubeadm writes every field.
	Object v1alpha1.KubeProxyConfiguration

	// Given are the fields that flags set, even to zero; nil: the Object comes from
	// a file. Flags have no section for mode nftables, which uses the section of mode
	// iptables then.
	Given map[string]bool
}

// Configuration is the validated configuration of the daemon. It is immutable.
type Configuration struct {
	// Object is a configuration file that results in this Configuration, with all
	// defaults. The fields below are the parsed form of some of its fields.
	Object *v1alpha1.KubeProxyConfiguration

	Mode               ProxyMode
	BindAddress        netip.Addr     // overrides the addresses of the Node; the zero value: does not
	HealthzBindAddress netip.AddrPort // the zero value: no health server
	MetricsBindAddress netip.AddrPort // the zero value: no metrics server
	ClusterCIDRs       []netip.Prefix
	NodePortAddresses  NodePortAddresses
	LocalhostNodePorts bool           // opens NodePorts on 127.0.0.0/8, too, if NodePortAddresses include it
	RelayLoopback      bool           // relays NodePorts at ::1, which NodePortAddresses name
	RefuseLoopback     bool           // refuses NodePorts at loopback addresses where they are not served
	ExcludeCIDRs       []netip.Prefix // virtual servers in them are not changed by mode ipvs
	SourceVIP          netip.Addr     // the client address that pods of overlay networks see, in mode kernelspace; the zero value: none
	MasqueradeAll      bool
	MasqueradeBit      int           // the bit of the packet mark that requests masquerading
	MinSyncPeriod      time.Duration // minimum time from the end of one sync to the start of the next
	SyncPeriod         time.Duration // time between full syncs

	given map[string]bool
	gates featuregate.MutableFeatureGate
}

// Gates returns the feature gates. The caller must not change them.
func (c *Configuration) Gates() featuregate.MutableFeatureGate { return c.gates }

// Explicit reports whether the operator has set a field. Defaults must not override
// what an administrator has set by other means. A value in a file that is equal to
// the default counts as not set: --write-config-to writes all defaults.
func (c *Configuration) Explicit(field string) bool {
	return c.given[field] || !reflect.DeepEqual(Field(c.Object, field).Interface(), Field(Defaults(), field).Interface())
}

// NodePortAddresses selects the addresses of the node on which NodePorts are open.
// The zero value selects all.
type NodePortAddresses struct {
	Primary bool           // the addresses of the Node object
	CIDRs   []netip.Prefix // and local addresses in these; a family without any has all local addresses, unless Primary
}

// String returns the addresses in the syntax of a configuration file.
func (n NodePortAddresses) String() string {
	text := strings.Trim(fmt.Sprint(n.CIDRs), "[]")
	if n.Primary {
		text = strings.TrimSpace(Primary + " " + text)
	}
	return cmp.Or(text, All)
}

// Field returns a field by its name in a file, like conntrack.min. The names of the
// Go fields differ from that only in case.
func Field(o *v1alpha1.KubeProxyConfiguration, field string) reflect.Value {
	v := reflect.ValueOf(o).Elem()
	for name := range strings.SplitSeq(field, ".") {
		v = v.FieldByNameFunc(func(s string) bool { return strings.EqualFold(s, name) })
	}
	return v
}

// FieldError is an invalid field.
type FieldError struct {
	Field  string // its name in a file
	Value  string
	Reason string
}

func (e *FieldError) Error() string { return fmt.Sprintf("%s %q: %s", e.Field, e.Value, e.Reason) }

// FieldErrors are all invalid fields of a configuration.
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
	Live  bool // a running daemon can apply it
}

func (c Change) String() string { return fmt.Sprintf("%s from %q to %q", c.Field, c.Old, c.New) }

// liveFields are the fields whose changes a running daemon can apply.
var liveFields = []string{
	"logging.verbosity", "healthzBindAddress", "metricsBindAddress", "clusterCIDR", "detectLocalMode",
	"detectLocal.bridgeInterface", "detectLocal.interfaceNamePrefix", "nodePortAddresses", "masqueradeAll",
	"minSyncPeriod", "syncPeriod",
}

// Changes returns the differences between two configurations in a fixed order: those
// that a running daemon can apply, then the mode, on which others depend, then all
// others by name.
func Changes(old, now *Configuration) []Change {
	before, after := old.effectiveFields(), now.effectiveFields()
	all := maps.Clone(before)
	maps.Copy(all, after)
	var out []Change
	for _, field := range slices.Concat(liveFields, []string{"mode"}, slices.Sorted(maps.Keys(all))) {
		if before[field] != after[field] {
			// HNS load balancers contain the port of the health server.
			inHNS := field == "healthzBindAddress" && now.Object.Winkernel.ForwardHealthCheckVip
			out = append(out, Change{field, before[field], after[field], slices.Contains(liveFields, field) && !inHNS})
		}
		delete(before, field)
		delete(after, field)
	}
	return out
}

// effectiveFields returns the fields of a configuration as text. Fields whose text
// can differ without a difference in meaning are in their parsed form.
func (c *Configuration) effectiveFields() map[string]string {
	out := flatten(c.Object)
	for _, section := range sections {
		for _, name := range []string{"masqueradeAll", "masqueradeBit", "minSyncPeriod", "syncPeriod"} {
			delete(out, string(section)+"."+name) // which section is used depends on the mode
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
		"nodePortAddresses":           c.nodePortsString(),
		"iptables.localhostNodePorts": fmt.Sprint(c.LocalhostNodePorts),
		"masqueradeAll":               fmt.Sprint(c.MasqueradeAll),
		"masqueradeBit":               fmt.Sprint(c.MasqueradeBit),
		"minSyncPeriod":               c.MinSyncPeriod.String(),
		"syncPeriod":                  c.SyncPeriod.String(),
	})
	return out
}

// nodePortsString returns which addresses take NodePorts.
func (c *Configuration) nodePortsString() string {
	text := c.NodePortAddresses.String()
	if c.RelayLoopback {
		text += ", relayed at ::1"
	}
	if c.RefuseLoopback {
		text += ", otherwise refused at loopback addresses"
	}
	return text
}

// ProxyMode is the name of a mode.
type ProxyMode = v1alpha1.ProxyMode

// The modes.
const (
	NFTables  ProxyMode = "nftables"
	IPTables  ProxyMode = "iptables"
	IPVS      ProxyMode = "ipvs"
	EBPF      ProxyMode = "ebpf"
	Userspace ProxyMode = "userspace"

	Kernelspace ProxyMode = "kernelspace" // Windows only
)

// sections are the modes whose sync periods have a section in a file.
var sections = []ProxyMode{IPTables, NFTables, IPVS}

// The values of detectLocalMode: how traffic of this node's pods is recognised.
const (
	LocalModeClusterCIDR         v1alpha1.LocalMode = "ClusterCIDR" // the default
	LocalModeNodeCIDR            v1alpha1.LocalMode = "NodeCIDR"
	LocalModeBridgeInterface     v1alpha1.LocalMode = "BridgeInterface"
	LocalModeInterfaceNamePrefix v1alpha1.LocalMode = "InterfaceNamePrefix"
)
