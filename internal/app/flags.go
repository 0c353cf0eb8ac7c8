package app

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // registers --logging-format=json

	"sluice/internal/apiobject"
	"sluice/internal/config"
	"sluice/internal/dataplane"
	"sluice/internal/proxy"
)

// flag is a flag of the command line.
type flag struct {
	name string
	to   any // a pointer to its variable, or the name of the configuration file's field that it sets
	help string
}

// hidden are the flags that help does not show.
var hidden = []string{
	"healthz-port", "metrics-port", "boot-id-file", "machine-id-file",
	"log-text-split-stream", "log-text-info-buffer-size", "log-json-split-stream", "log-json-info-buffer-size",
}

// nodeField is the only field whose flag overrides the file.
const nodeField = "hostnameOverride"

// The flags follow, in the groups and the order of help. A flag for another field
// of the file is one more line here.

func (o *Options) processFlags() {
	o.group("Where Services are read from (without any: the cluster this runs in)", []flag{
		{"manifests", &o.Manifests, "read and watch the YAML and JSON files in `DIR`; no cluster is needed"},
		{"kubeconfig", "clientConnection.kubeconfig", "connect to the API server as configured in this `FILE`"},
		{"master", &o.Master, "connect to the API server at this `URL`, overriding the kubeconfig"},
		{"kube-api-content-type", "clientConnection.contentType", "use this content `TYPE` with the API server"},
		{"kube-api-qps", "clientConnection.qps", "send at most this `NUMBER` of requests a second"},
		{"kube-api-burst", "clientConnection.burst", "send at most this `NUMBER` of requests at once"},
		{"config-sync-period", "configSyncPeriod", "accepted and ignored, since objects are not cached; kube-proxy " +
			"takes a `TIME`"},
	})
	o.group("Configuration", []flag{
		{"config", &o.ConfigFile, "read the KubeProxyConfiguration in this `FILE` and follow its changes; it " +
			"overrides all flags except those of logging, --hostname-override, and those that it has no field for"},
		{"write-config-to", &o.WriteConfigTo, "write the configuration in force to this `FILE`, then exit"},
		{"feature-gates", "featureGates", "`GATES` of Kubernetes, like Name=true,Other=false"},
	})
	o.group("This node", []flag{
		{"hostname-override", nodeField, "use this `NAME` for the node instead of the host's"},
		{"bind-address", "bindAddress", "use this `IP` as the node's instead of those in its Node object; an " +
			"unspecified address is ignored"},
		{"oom-score-adj", "oomScoreAdj", "`SCORE` from -1000 to 1000; the lower, the less likely the kernel kills this " +
			"process when memory is short"},
	})
}

func (o *Options) trafficFlags() {
	o.group("Traffic", []flag{
		{"proxy-mode", "mode", "program the kernel in this `MODE`: " + dataplane.Names(" or ") + "; without it, the " +
			"mode that the host requires, or the best that the kernel supports"},
		{"load-balancing", &o.LoadBalancing, "choose endpoints by this `METHOD`: " +
			proxy.BalancingWords(proxy.Balancings[:]) + ", if the mode supports it; a Service can override it; without it, " +
			"the mode's default"},
		{"reject-with-tcp-reset", &o.ResetTCP, "refuse TCP connections with a reset instead of an ICMP error, which the " +
			"kernel limits to one a second for each client"},
		{"cluster-cidr", "clusterCIDR", "`CIDRS` of the pods in the cluster: one, or one of each family, separated " +
			"by a comma"},
		{"detect-local-mode", "detectLocalMode", "`HOW` to recognise traffic of this node's pods: ClusterCIDR (the " +
			"default), NodeCIDR, BridgeInterface or InterfaceNamePrefix"},
		{"pod-bridge-interface", "detectLocal.bridgeInterface", "`NAME` of the bridge that pods are on, for " +
			"BridgeInterface"},
		{"pod-interface-name-prefix", "detectLocal.interfaceNamePrefix", "`PREFIX` of the pods' interface names, for " +
			"InterfaceNamePrefix"},
		{"masquerade-all", "iptables.masqueradeAll", "masquerade all traffic to ClusterIPs, which hides the client's " +
			"address"},
		{"nodeport-addresses", "nodePortAddresses", "open NodePorts on the node's addresses within these `CIDRS`, or " +
			"given by words: primary (the default if mode nftables is named) means those of its Node object, localhost " +
			"loopback addresses (127.0.0.0/8, and ::1 by a relay), all every address; they can be combined"},
		{apiobject.AllowedExternalIPs, &o.Allowed.ExternalIPs, "serve spec.externalIPs of Services only within these `CIDRS`; none: " +
			"serve none of them; without the flag, all"},
		{apiobject.AllowedLoadBalancerIPs, &o.Allowed.LoadBalancerIPs, "serve load-balancer IPs of Services only within these " +
			"`CIDRS`; none: serve none of them; without the flag, all"},
	})
	o.group("Health and metrics", []flag{
		{"healthz-bind-address", "healthzBindAddress", "answer health checks at this `IP` or IP:PORT; empty or none: " +
			"do not"},
		{"metrics-bind-address", "metricsBindAddress", "serve metrics at this `IP` or IP:PORT; empty or none: do not"},
		{"bind-address-hard-fail", "bindAddressHardFail", "exit when one of these addresses cannot be bound, instead of " +
			"retrying"},
		{"profiling", "enableProfiling", "serve /debug/pprof and /debug/flags on the metrics server"},
		{"show-hidden-metrics-for-version", "showHiddenMetricsForVersion", "also serve the metrics that were hidden " +
			"after this `VERSION`; only the previous minor version is possible"},
		{"service-traffic", &o.Traffic.Level, "count the traffic of each Service at this `LEVEL`: off, connections, or bytes, for " +
			"which the kernel counts every tracked packet"},
		{"service-traffic-endpoints", &o.Traffic.Endpoints, "also serve metrics for each endpoint, which can be very many"},
		{"service-traffic-series", &o.Traffic.MaxSeries, "serve metrics for at most this `NUMBER` of Service ports with traffic, " +
			"and one series for all others together"},
		{"healthz-port", new(int32(config.HealthzPort)), "deprecated: the port for --healthz-bind-address"},
		{"metrics-port", new(int32(config.MetricsPort)), "deprecated: the port for --metrics-bind-address"},
	})
	o.group("Connection tracking (0 leaves the kernel's setting)", []flag{
		{"conntrack-max-per-core", "conntrack.maxPerCore", "track this `NUMBER` of connections for each CPU"},
		{"conntrack-min", "conntrack.min", "track at least this `NUMBER` of connections, however few CPUs there are"},
		{"conntrack-tcp-timeout-established", "conntrack.tcpEstablishedTimeout", "forget an idle TCP connection " +
			"after this `TIME`"},
		{"conntrack-tcp-timeout-close-wait", "conntrack.tcpCloseWaitTimeout", "forget a TCP connection in CLOSE_WAIT " +
			"after this `TIME`"},
		{"conntrack-tcp-be-liberal", "conntrack.tcpBeLiberal", "accept TCP packets whose sequence numbers are outside the window"},
		{"conntrack-udp-timeout", "conntrack.udpTimeout", "forget an unanswered UDP flow after this `TIME`"},
		{"conntrack-udp-timeout-stream", "conntrack.udpStreamTimeout", "forget an answered UDP flow after this `TIME`"},
	})
	o.group("Modes iptables and nftables", []flag{
		{"iptables-masquerade-bit", "iptables.masqueradeBit", "mark packets to masquerade with this `BIT` of the " +
			"packet mark, from 0 to 31; also in mode ipvs"},
		{"iptables-localhost-nodeports", "iptables.localhostNodePorts", "also open NodePorts on 127.0.0.0/8, and on " +
			"::1 if --nodeport-addresses names it; without effect if mode nftables or ipvs is named"},
		{"iptables-sync-period", "iptables.syncPeriod", "compare all rules with the kernel's after this `TIME`; in mode " +
			"nftables the default is 1h"},
		{"iptables-min-sync-period", "iptables.minSyncPeriod", "wait at least this `TIME` between two changes of the rules; " +
			"0 if the flag is not given"},
	})
	o.group("Mode ipvs", []flag{
		{"ipvs-scheduler", "ipvs.scheduler", "`NAME` of the IPVS scheduler; the default is rr"},
		{"ipvs-exclude-cidrs", "ipvs.excludeCIDRs", "do not change virtual servers within these `CIDRS`"},
		{"ipvs-strict-arp", "ipvs.strictARP", "do not answer ARP for addresses of other interfaces"},
		{"ipvs-sync-period", "ipvs.syncPeriod", "compare all rules with the kernel's after this `TIME`"},
		{"ipvs-min-sync-period", "ipvs.minSyncPeriod", "wait at least this `TIME` between two changes of the rules"},
		{"ipvs-tcp-timeout", "ipvs.tcpTimeout", "forget an idle TCP session after this `TIME`; 0: the kernel's default"},
		{"ipvs-tcpfin-timeout", "ipvs.tcpFinTimeout", "forget a TCP session this `TIME` after a FIN; 0: the kernel's " +
			"default"},
		{"ipvs-udp-timeout", "ipvs.udpTimeout", "forget an idle UDP session after this `TIME`; 0: the kernel's default"},
	})
}

func (o *Options) statusFlags() {
	o.group("Status", []flag{
		{"status-socket", &o.StatusSocket, "answer sluice status, explain and top at this unix socket, `FILE`, which only " +
			"its owner may use; empty: do not"},
		{"status-bind-address", &o.StatusTCP.address, "also answer at this `IP:PORT`: at a loopback address to every process " +
			"of this node, at any other, with TLS, to clients with a token of the cluster and the right to get the path; " +
			"empty or none: do not"},
		{"status-tls-cert-file", &o.StatusTCP.certFile, "use the certificate in this `FILE` there, with its intermediate " +
			"certificates; the file is read again when it changes"},
		{"status-tls-private-key-file", &o.StatusTCP.keyFile, "read the private key of that certificate from this `FILE`"},
	})
}

func (o *Options) relayFlags() {
	o.group("Mode userspace", []flag{
		{"userspace-dial-timeout", &o.Relay.DialTimeout, "try another endpoint when one does not answer within this `TIME`"},
		{"userspace-dial-retries", &o.Relay.Retries, "try this `NUMBER` of other endpoints when one cannot be connected to"},
		{"userspace-udp-timeout", &o.Relay.UDPTimeout, "end a UDP session after this `TIME` without packets"},
		{"userspace-max-connections", &o.Relay.MaxConnections, "refuse more than this `NUMBER` of connections, and of " +
			"UDP sessions; 0: as many as the limit of open files allows"},
		{"userspace-drain-timeout", &o.Relay.DrainTimeout, "when told to stop, serve open connections for up to this " +
			"`TIME`, unless another daemon takes them over"},
	})
}

const untrackedCIDRs = "ebpf-untracked-cidrs"

func (o *Options) ebpfFlags() {
	o.group("Mode ebpf", []flag{
		{"cgroup-root", &o.EBPF.CgroupRoot, "serve the sockets of processes in this `FOLDER` of a cgroup2 file system; the default is all"},
		{"bpf-root", &o.EBPF.BPFRoot, "keep programs and maps in this `FOLDER` of a BPF file system"},
		{"ebpf-fallback", &o.EBPF.Fallback, "if the kernel does not support the mode, log why and use the rules of mode nftables only"},
		{untrackedCIDRs, &o.Untracked, "do not track TCP and UDP connections between pods, which have addresses in these `CIDRS`, " +
			"unless rules translate them; docs/modes.md lists benefits and costs"},
	})
}

// windowsFlags adds the flags for Windows. It hides the flags that Windows accepts
// only because kube-proxy does, and that have no effect there.
func (o *Options) windowsFlags() {
	o.group("Mode kernelspace", []flag{
		{"network-name", "winkernel.networkName", "`NAME` of the HNS network that pods are on; the default is the value of the " +
			"environment variable KUBE_NETWORK"},
		{"source-vip", "winkernel.sourceVip", "pods of an overlay network see this `IP` as their client, unless --enable-dsr"},
		{"enable-dsr", "winkernel.enableDSR", "let endpoints answer clients of ClusterIPs directly, and see their addresses"},
		{"root-hnsendpoint-name", "winkernel.rootHnsEndpointName", "`NAME` of the host's own HNS endpoint, which answers " +
			"health checks"},
		{"forward-healthcheck-vip", "winkernel.forwardHealthCheckVip", "answer health checks at load-balancer addresses, too"},
	})
	o.group("Windows", []flag{
		{"windows-service", &o.Windows.Service, "run as a service, controlled by the service control manager, and log to the " +
			"event log, too"},
		{"windows-priorityclass", &o.Windows.PriorityClass, "give this process a priority `CLASS`: " +
			strings.Join(priorityClasses, ", ")},
	})
	for _, f := range o.flags {
		f.Hidden = f.Hidden || strings.HasPrefix(f.Name, "conntrack-") || strings.HasPrefix(f.Name, "ipvs-") || f.Name == "oom-score-adj"
	}
}

func (o *Options) otherFlags() {
	o.group("Other", []flag{
		{"cleanup", &o.Cleanup, "remove all rules of service proxies, of kube-proxy as well, from the kernel, then exit"},
		{"init-only", &o.InitOnly, "only prepare the node, which needs more privileges than serving and no API server, then exit"},
		{"version", &o.version, "print the version, or with raw all details of the build, then exit; with a " +
			"version like v1.2.3-more, report that one"},
		{"help", new(bool), "print this text, then exit"},
		// Flags of a library that kube-proxy once used.
		{"boot-id-file", new("/proc/sys/kernel/random/boot_id"), "accepted and ignored"},
		{"machine-id-file", new("/etc/machine-id,/var/lib/dbus/machine-id"), "accepted and ignored"},
	})
	o.group("Logging", []flag{{"", &o.object.Logging, ""}})
}

// group adds a group of flags. The current values of their variables are the
// defaults that help shows.
func (o *Options) group(title string, flags []flag) {
	fs := pflag.NewFlagSet(title, pflag.ContinueOnError)
	fs.SortFlags = false
	for _, f := range flags {
		if field, ok := f.to.(string); ok {
			f.to = pointer(config.Field(o.object, field))
			o.fields[f.name] = field
		}
		f.add(fs)
	}
	fs.VisitAll(func(f *pflag.Flag) {
		f.Hidden = f.Hidden || slices.Contains(hidden, f.Name)
		o.flags = append(o.flags, f)
	})
	o.groups = append(o.groups, fs)
}

// pointer returns a pointer to a field, or to what the field points to. Fields of
// string types become *string.
func pointer(v reflect.Value) any {
	p := reflect.Indirect(v).Addr()
	if p.Elem().Kind() == reflect.String {
		p = p.Convert(reflect.TypeFor[*string]())
	}
	return p.Interface()
}

func (f flag) add(fs *pflag.FlagSet) {
	switch to := f.to.(type) {
	case *string:
		fs.StringVar(to, f.name, *to, f.help)
	case *bool:
		fs.BoolVarP(to, f.name, map[string]string{"help": "h"}[f.name], *to, f.help)
	case *int:
		fs.IntVar(to, f.name, *to, f.help)
	case *time.Duration:
		fs.DurationVar(to, f.name, *to, f.help)
	case *int32:
		fs.Int32Var(to, f.name, *to, f.help)
	case *float32:
		fs.Float32Var(to, f.name, *to, f.help)
	case *metav1.Duration:
		fs.DurationVar(&to.Duration, f.name, to.Duration, f.help)
	case *[]string:
		fs.StringSliceVar(to, f.name, *to, f.help)
	case *map[string]bool:
		fs.Var(cliflag.NewMapStringBool(to), f.name, f.help)
	case *versionFlag:
		fs.VarPF(to, f.name, "", f.help).NoOptDefVal = "true"
	case *logsapi.LoggingConfiguration:
		logsapi.AddFlags(to, fs)
	default:
		panic(fmt.Sprintf("flag --%s cannot be a %T", f.name, to))
	}
}

// changedFlags returns the flags that the command line sets.
func (o *Options) changedFlags() []*pflag.Flag {
	return slices.DeleteFunc(slices.Clone(o.flags), func(f *pflag.Flag) bool { return !f.Changed })
}

// flagOf returns the flag that sets a field, or the field itself if there is none.
func (o *Options) flagOf(field string) string {
	for flag, of := range o.fields {
		if of == field {
			return "--" + flag
		}
	}
	return field
}
