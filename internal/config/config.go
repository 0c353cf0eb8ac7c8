package config

import (
	"fmt"
	"net/netip"
	"time"
)

// Primary is the word that stands for the node's own addresses where CIDRs
// could be given.
const Primary = "primary"

// Configuration is everything the daemon can be told about its proxying.
type Configuration struct {
	Mode                ProxyMode
	BindAddress         netip.Addr // the node's address instead of what its Node says; the zero value: as the Node says
	ClusterCIDRs        []netip.Prefix
	DetectLocalMode     LocalMode
	BridgeInterface     string
	InterfaceNamePrefix string
	MasqueradeAll       bool
	NodePortAddresses   NodePortAddresses
	MasqueradeBit       int           // the bit of the packet mark that asks for masquerading
	MinSyncPeriod       time.Duration // from the end of one sync to the start of the next; 0: as soon as the last one is done
	SyncPeriod          time.Duration // from one full sync to the next
}

// NodePortAddresses says which addresses of the node take NodePorts. The zero
// value is all of them.
type NodePortAddresses struct {
	Primary bool // the node's own addresses
	CIDRs   []netip.Prefix
}

// Default returns the configuration of a daemon that is told nothing.
func Default() Configuration {
	return Configuration{
		Mode:              NFTables,
		DetectLocalMode:   LocalModeClusterCIDR,
		NodePortAddresses: NodePortAddresses{Primary: true},
		MasqueradeBit:     14,
		// A change costs what it is, so nothing is gained by waiting for more.
		SyncPeriod: time.Hour,
	}
}

// Field names a field of the Configuration.
type Field string

// The fields that can be wrong, named as in a configuration file.
const (
	FieldMode                Field = "mode"
	FieldBindAddress         Field = "bindAddress"
	FieldClusterCIDR         Field = "clusterCIDR"
	FieldDetectLocalMode     Field = "detectLocalMode"
	FieldBridgeInterface     Field = "detectLocal.bridgeInterface"
	FieldInterfaceNamePrefix Field = "detectLocal.interfaceNamePrefix"
	FieldNodePortAddresses   Field = "nodePortAddresses"
	FieldMasqueradeBit       Field = "masqueradeBit"
	FieldMinSyncPeriod       Field = "minSyncPeriod"
	FieldSyncPeriod          Field = "syncPeriod"
)

// FieldError says what is wrong with a field.
type FieldError struct {
	Field  Field
	Value  string
	Reason string
}

// Error returns the field, its value and the reason.
func (e *FieldError) Error() string { return fmt.Sprintf("%s %q: %s", e.Field, e.Value, e.Reason) }

func wrong(f Field, value any, format string, args ...any) error {
	return &FieldError{Field: f, Value: fmt.Sprint(value), Reason: fmt.Sprintf(format, args...)}
}
