package config

import (
	"errors"
	"strings"
)

// maxInterfaceName is the longest name the kernel gives an interface.
const maxInterfaceName = 15

// Validate returns every wrong field, joined; each is a [*FieldError].
func (c *Configuration) Validate() error {
	var errs []error
	if err := c.Mode.Check(); err != nil {
		errs = append(errs, wrong(FieldMode, c.Mode, "%v", err))
	}
	errs = append(errs, c.validateClusterCIDRs(), c.validateDetectLocal())
	if c.MasqueradeBit < 0 || c.MasqueradeBit > 31 {
		errs = append(errs, wrong(FieldMasqueradeBit, c.MasqueradeBit, "must be from 0 to 31"))
	}
	if c.MinSyncPeriod < 0 {
		errs = append(errs, wrong(FieldMinSyncPeriod, c.MinSyncPeriod, "must not be negative"))
	}
	if c.SyncPeriod <= 0 {
		errs = append(errs, wrong(FieldSyncPeriod, c.SyncPeriod, "must be more than 0"))
	}
	if c.SyncPeriod > 0 && c.MinSyncPeriod > c.SyncPeriod {
		errs = append(errs, wrong(FieldMinSyncPeriod, c.MinSyncPeriod, "must not be more than %s %v",
			FieldSyncPeriod, c.SyncPeriod))
	}
	if n := c.NodePortAddresses; n.Primary && len(n.CIDRs) > 0 {
		errs = append(errs, wrong(FieldNodePortAddresses, n.CIDRs, "%q must stand alone", Primary))
	}
	return errors.Join(errs...)
}

func (c *Configuration) validateClusterCIDRs() error {
	var given []string
	for _, p := range c.ClusterCIDRs {
		given = append(given, p.String())
	}
	value := strings.Join(given, ",")
	switch n := c.ClusterCIDRs; {
	case len(n) > 2:
		return wrong(FieldClusterCIDR, value, "at most one CIDR of each family")
	case len(n) == 2 && n[0].Addr().Is4() == n[1].Addr().Is4():
		return wrong(FieldClusterCIDR, value, "two CIDRs must be one of each family")
	default:
		return nil
	}
}

func (c *Configuration) validateDetectLocal() error {
	switch c.DetectLocalMode {
	case LocalModeClusterCIDR, LocalModeNodeCIDR:
		return nil
	case LocalModeBridgeInterface:
		return validateInterface(FieldBridgeInterface, c.BridgeInterface, c.DetectLocalMode)
	case LocalModeInterfaceNamePrefix:
		return validateInterface(FieldInterfaceNamePrefix, c.InterfaceNamePrefix, c.DetectLocalMode)
	default:
		return wrong(FieldDetectLocalMode, c.DetectLocalMode, "no such mode; modes: %s", localModeList())
	}
}

// validateInterface checks what a mode needs: a name that an interface can have.
func validateInterface(f Field, name string, m LocalMode) error {
	switch {
	case name == "":
		return wrong(f, name, "needed by mode %s", m)
	case len(name) > maxInterfaceName:
		return wrong(f, name, "longer than the %d characters of an interface name", maxInterfaceName)
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == '/' || r == ':' || r == 0x7f }):
		return wrong(f, name, "not an interface name")
	default:
		return nil
	}
}

func localModeList() string {
	var names []string
	for _, m := range LocalModes() {
		names = append(names, string(m))
	}
	return strings.Join(names, ", ")
}
