package config

import (
	"cmp"
	"errors"
	"net/netip"
	"strings"
	"time"

	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// Input is what an operator has said, in flags or in a file. The zero value is
// an operator who has said nothing.
type Input struct {
	// Object has a zero field where nothing was said. In a file a zero counts
	// as nothing too: kubeadm writes out every field.
	Object v1alpha1.KubeProxyConfiguration

	// Flags says that the Object comes from flags, which have no section for
	// mode nftables: it reads the section of mode iptables.
	Flags bool

	// Given are the fields that flags have set, be it to zero.
	Given map[Field]bool
}

// Mode returns the proxy mode that was asked for; "" if none was.
func (in Input) Mode() ProxyMode { return ProxyMode(in.Object.Mode) }

// Configuration fills in every default. The mode is that of an operator who
// has asked for none. The error joins a [*FieldError] for each wrong field.
func (in Input) Configuration(unset ProxyMode) (Configuration, error) {
	r := reading{Input: in, o: &in.Object}
	r.c.Mode = cmp.Or(in.Mode(), unset)
	if err := r.c.Mode.Check(); err != nil {
		r.wrong(FieldMode, r.c.Mode, "%v", err)
	}
	r.process()
	r.gates()
	r.addresses()
	r.detectLocal()
	r.nodePorts()
	r.masquerade()
	r.periods()
	r.ipvs()
	r.conntrack()
	r.c.Object = r.effective()
	return r.c, errors.Join(r.errs...)
}

// reading is an Input on its way to a Configuration.
type reading struct {
	Input
	o    *v1alpha1.KubeProxyConfiguration
	c    Configuration
	errs []error
}

func (r *reading) wrong(f Field, value any, format string, args ...any) {
	r.errs = append(r.errs, wrong(f, value, format, args...))
}

func (r *reading) refuse(err error) {
	if err != nil {
		r.errs = append(r.errs, err)
	}
}

// process reads what is not about traffic.
func (r *reading) process() {
	o, c := r.o, &r.c
	c.HostnameOverride = o.HostnameOverride
	if c.HostnameOverride != "" && strings.TrimSpace(c.HostnameOverride) == "" {
		r.wrong(FieldHostnameOverride, c.HostnameOverride, "a node name cannot be blank")
	}
	c.Client = ClientConnection{
		Kubeconfig:         o.ClientConnection.Kubeconfig,
		AcceptContentTypes: o.ClientConnection.AcceptContentTypes,
		ContentType:        cmp.Or(o.ClientConnection.ContentType, defaultContentType),
		QPS:                cmp.Or(o.ClientConnection.QPS, defaultQPS),
		Burst:              int(cmp.Or(o.ClientConnection.Burst, defaultBurst)),
	}
	if c.Client.Burst < 0 {
		r.wrong(FieldBurst, c.Client.Burst, "must not be negative")
	}
	c.Logging = *o.Logging.DeepCopy()
	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
	c.ConfigSyncPeriod = r.positive(FieldConfigSyncPeriod, o.ConfigSyncPeriod.Duration, defaultConfigSyncPeriod)
	c.OOMScoreAdj = int(valueOr(o.OOMScoreAdj, defaultOOMScoreAdj))
	if c.OOMScoreAdj < -1000 || c.OOMScoreAdj > 1000 {
		r.wrong(FieldOOMScoreAdj, c.OOMScoreAdj, "must be from -1000 to 1000")
	}
	c.BindAddressHardFail = o.BindAddressHardFail
	c.EnableProfiling = o.EnableProfiling
	c.ShowHiddenMetricsForVersion = o.ShowHiddenMetricsForVersion
	if v := c.ShowHiddenMetricsForVersion; v != "" && v != previousMinor && v != minorBefore {
		r.wrong(FieldShowHiddenMetrics, v, "must be %s, the minor version before this one, or nothing", previousMinor)
	}
}

// positive returns a period that must be more than zero. A zero that nobody
// has given means the default.
func (r *reading) positive(f Field, d, fallback time.Duration) time.Duration {
	if d == 0 && !r.Given[f] {
		return fallback
	}
	if d <= 0 {
		r.wrong(f, d, "must be more than 0")
	}
	return d
}

// addresses reads where to listen.
func (r *reading) addresses() {
	var err error
	r.c.BindAddress, err = ParseBindAddress(r.o.BindAddress)
	r.refuse(err)
	every, loopback := netip.IPv4Unspecified(), netip.AddrFrom4([4]byte{127, 0, 0, 1})
	// The flags' defaults are those of their help text whatever other flags say.
	if ip, ok := parseAddr(r.o.BindAddress); ok && !ip.Is4() && !r.Flags {
		every, loopback = netip.IPv6Unspecified(), netip.IPv6Loopback()
	}
	r.c.HealthzBindAddress = r.server(FieldHealthzBindAddress, r.o.HealthzBindAddress,
		netip.AddrPortFrom(every, HealthzPort))
	r.c.MetricsBindAddress = r.server(FieldMetricsBindAddress, r.o.MetricsBindAddress,
		netip.AddrPortFrom(loopback, MetricsPort))
	if a := r.c.MetricsBindAddress; a.IsValid() && a == r.c.HealthzBindAddress {
		r.wrong(FieldMetricsBindAddress, a, "is the health server's address already")
	}
}

// server returns the address of a server, zero when it is switched off.
func (r *reading) server(f Field, s string, fallback netip.AddrPort) netip.AddrPort {
	switch {
	case s == None || s == "" && r.Given[f]:
		return netip.AddrPort{}
	case s == "":
		return fallback
	}
	a, err := parseServer(f, s, fallback.Port())
	r.refuse(err)
	return a
}
