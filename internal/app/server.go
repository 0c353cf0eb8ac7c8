package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	k8smetrics "k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/kube-proxy/config/v1alpha1"

	"sluice/internal/apiobject"
	"sluice/internal/config"
	"sluice/internal/conntrack"
	"sluice/internal/dataplane"
	"sluice/internal/engine"
	"sluice/internal/health"
	"sluice/internal/kernel/ct"
	"sluice/internal/kernel/link"
	"sluice/internal/metrics"
	"sluice/internal/nodeportrelay"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/source"
	"sluice/internal/source/manifest"
	"sluice/internal/status"
	"sluice/internal/traffic"
)

const (
	// fullSyncPeriod is the minimum time between two periodic full syncs in modes
	// that are notified of changes by other processes. There, full syncs are only
	// a safety net.
	fullSyncPeriod = time.Hour
	// leaveTimeout limits the dataplane's last write before exit.
	leaveTimeout = 5 * time.Second
)

// healthTimeout returns how long a requested sync may be outstanding before the
// proxy counts as unhealthy: two sync periods. Periods of an hour or more, as is
// the default of mode nftables, would hide failures, so kube-proxy's default
// period is used instead of them.
func healthTimeout(c config.Configuration) time.Duration {
	if c.SyncPeriod >= fullSyncPeriod {
		return 2 * config.DefaultSyncPeriod
	}
	return 2 * c.SyncPeriod
}

// plan is the validated input of a [ProxyServer]: flags, configuration, and what
// follows from them.
type plan struct {
	options   *Options
	config    config.Configuration
	chosen    bool // no mode is set: that of config is the daemon's choice
	balancing resolve.Balancing
	allowed   apiobject.Allowed
	node      string
	source    objectSource
	status    statusListener
	priority  uint32 // of the process, on Windows
}

// ProxyServer connects a source of objects, the engine, a dataplane and their
// observers, and runs them.
type ProxyServer struct {
	plan     plan
	families []proxy.Family
	events   *recorder

	dataplane proxy.Dataplane
	mode      dataplane.Mode
	objects   source.Source // reads while the kernel is probed
	provider  engine.Provider
	configure func(s resolve.Settings, minSyncPeriod, syncPeriod time.Duration) // reconfigures the provider while it runs
	ready     chan struct{}                                                     // closed when the first sync has succeeded
	markReady func()                                                            // closes ready; may be called repeatedly

	familyErr  chan error            // receives why the Node's primary family cannot be served
	flows      ct.Interface          // nil if the mode ends stale connections itself
	conntrack  *conntrack.Reconciler // nil if flows is
	health     *health.ProxyHealth
	checks     *health.ServiceChecks
	relay      *nodeportrelay.Relay
	refusals   *refusals
	metrics    *metrics.Metrics
	traffic    *traffic.Collector                              // nil if traffic is not counted
	trafficOff string                                          // why traffic is not counted
	configz    atomic.Pointer[v1alpha1.KubeProxyConfiguration] // the configuration in force

	problemEvents *rate.Limiter

	healthServer  *health.Server
	metricsServer *health.Server
	statusServer  http.Handler
	files         atomic.Pointer[[]manifest.Problem] // problems of manifest files
	statusTCP     *health.Server
}

// NewProxyServer starts to read objects, until ctx ends, probes the kernel and opens
// the dataplane. It does not change the kernel's rules; Run does.
func NewProxyServer(ctx context.Context, p plan) (*ProxyServer, error) {
	klog.FromContext(ctx).Info("Starting", "version", p.options.version.reported(), "mode", p.config.Mode,
		"source", p.source.String(), "node", p.node)
	s := &ProxyServer{
		plan: p, ready: make(chan struct{}), familyErr: make(chan error, 1),
		problemEvents: rate.NewLimiter(rate.Every(refusalEvery), refusalBurst),
	}
	s.markReady = sync.OnceFunc(func() { close(s.ready) })
	s.objects = source.Start(ctx, p.source.open(p.node, p.options.doubts, func(all []manifest.Problem) { s.files.Store(&all) }))
	mode, settings, err := p.options.probeMode(ctx, p.config)
	if err != nil {
		return nil, err
	}
	_, missing := enabledFamilies()
	klog.FromContext(ctx).Info("Serving", append([]any{"families", fmt.Sprint(settings.Families)}, reasonFields(missing)...)...)
	s.mode, s.families = mode, settings.Families
	if err := s.checkFamily(p.config.BindAddress, "bindAddress"); err != nil {
		return nil, err
	}
	resolveSettings, err := p.resolveSettings(ctx, s.families)
	if err != nil {
		return nil, err
	}
	if s.dataplane, err = mode.Open(ctx, settings); err != nil {
		return nil, fmt.Errorf("open mode %s: %w", p.config.Mode, err)
	}
	if mode.Flows != nil {
		if s.flows, err = mode.Flows(); err != nil {
			return nil, errors.Join(err, s.dataplane.Close())
		}
	}
	s.openTraffic(ctx)
	if err := s.wire(ctx, resolveSettings); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// fullSyncPeriod returns the time between periodic full syncs. A mode that is not
// notified of changes by other processes finds them only in full syncs.
func (s *ProxyServer) fullSyncPeriod(c config.Configuration) time.Duration {
	if s.mode.Polls {
		return c.SyncPeriod
	}
	return max(c.SyncPeriod, fullSyncPeriod)
}

// wire creates the components and connects them.
func (s *ProxyServer) wire(ctx context.Context, rs resolve.Settings) error {
	c := s.plan.config
	registry := k8smetrics.NewKubeRegistry()
	var modeMetrics []proxy.Metric
	if d, ok := s.dataplane.(proxy.Measured); ok {
		modeMetrics = d.Metrics(ctx)
	}
	s.relay = nodeportrelay.New(s.relayFailed)
	if c.Gates().Enabled(config.GateLocalhostNodePorts) && c.Mode == config.NFTables {
		modeMetrics = append(modeMetrics, s.relay.Metrics()...)
	}
	var e *engine.Engine // created below, because it needs the metrics
	extra := append(conntrackMetrics(conntrackUsage), buildMetric(build()), doubtsMetric(func() []engine.Doubt { return e.Doubts() }))
	extra = append(extra, s.plan.source.contactMetrics()...)
	if s.traffic != nil {
		extra = append(extra, s.traffic.Metrics(ctx)...)
	}
	m, err := metrics.New(metrics.Settings{Registry: registry, Families: s.families, Mode: modeMetrics, Extra: extra})
	if err != nil {
		return err
	}
	s.metrics = m
	if err := registerBuild(registry, build()); err != nil {
		return err
	}
	s.health = health.NewProxyHealth(health.Settings{
		Families: s.families, Timeout: healthTimeout(c), Healthz: m.Healthz, Livez: m.Livez,
	})
	if s.plan.source.manifests != "" {
		s.health.SyncNode(&v1.Node{}) // a folder need not contain the Node, and nothing drains it
	}
	s.checks = health.NewServiceChecks(health.CheckSettings{
		Healthy: s.health.Healthy, Addresses: link.Conn{}, Failed: s.checkFailed,
	})
	if s.flows != nil {
		s.conntrack = conntrack.New(conntrack.Settings{
			Flows: s.flows, LocalAddrs: link.Conn{}.LocalPrefixes, Passed: m.ConntrackReconciled, ThreadTime: threadTime(),
		})
	}
	e = engine.New(engine.Settings{
		Dataplane:     s.dataplane,
		Resolver:      resolve.New(rs),
		MinSyncPeriod: c.MinSyncPeriod,
		SyncPeriod:    s.fullSyncPeriod(c),
		Observer:      observers{s, m},
		Doubts:        s.plan.options.doubts,
	})
	s.provider, s.configure = e, e.Configure
	s.refusals = newRefusals(e.Refused, func(e refusalEvent) { s.events.refusal(e) })
	s.countRefused()
	s.configz.Store(c.Object)
	s.healthServer = health.NewServer(health.ServerSettings{
		Name: "health", Handler: s.health.Handler(), Address: c.HealthzBindAddress, HardFail: c.Object.BindAddressHardFail,
	})
	s.metricsServer = health.NewServer(health.ServerSettings{
		Name: "metrics", Handler: s.metricsHandler(registry), Address: c.MetricsBindAddress,
		HardFail: c.Object.BindAddressHardFail,
	})
	s.statusServer = s.newStatusServer(e).Handler()
	s.statusTCP = s.plan.status.serve(s.statusServer)
	return nil
}

// checkFailed records an event about a Service whose health-check node port cannot
// be served.
func (s *ProxyServer) checkFailed(c *proxy.HealthCheck, err error) {
	about := serviceReference(types.NamespacedName{Namespace: c.Key.Namespace, Name: c.Key.Name})
	s.events.record(about, v1.EventTypeWarning, reasonServiceHealth,
		fmt.Sprintf("node %s cannot answer health checks of port %d: %v", s.plan.node, c.Port, err))
}

// relayFailed records an event about a Service whose NodePort cannot be served at [::1].
func (s *ProxyServer) relayFailed(key proxy.PortKey, err error) {
	about := serviceReference(types.NamespacedName{Namespace: key.Namespace, Name: key.Name})
	s.events.record(about, v1.EventTypeWarning, reasonRelay,
		fmt.Sprintf("node %s cannot serve a NodePort at [::1]: %v", s.plan.node, err))
}

// Run serves until ctx ends, and then returns nil. The rules stay in the kernel.
func (s *ProxyServer) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	s.events = newRecorder(ctx, s.plan.source.client, s.plan.node)
	if err := s.checkListenAddresses(ctx); err != nil {
		return errors.Join(err, s.close())
	}
	for _, p := range tuneHost(ctx, s.plan) {
		s.events.warn(reasonPlatform, p.String())
	}
	s.events.record(s.events.node, v1.EventTypeNormal, reasonStarting, "")
	_, hasGoroutines := s.dataplane.(proxy.Runner)
	jobs := []job{
		{"tune the garbage collector", func(ctx context.Context) error { return tuneGC(ctx, s.ready, !hasGoroutines) }},
		{"read objects", func(ctx context.Context) error { return s.objects.Run(ctx, s.provider) }},
		{"sync", s.provider.SyncLoop},
		{"check the Node's family", s.watchNodeFamily},
		{"report refused Services", s.refusals.Run},
		{"take over from kube-proxy", s.takeOver},
		{"answer health checks of Services", s.checks.Run},
		{"relay NodePorts at [::1]", s.relay.Run},
		{"serve health", s.serveAndReport(s.healthServer, reasonHealthPort)},
		{"serve metrics", s.serveAndReport(s.metricsServer, reasonMetricsPort)},
		{"serve status over TCP", s.statusTCP.Run},
	}
	if s.conntrack != nil {
		jobs = append(jobs, job{"reconcile connections", s.conntrack.Run})
	}
	if path := s.plan.options.StatusSocket; path != "" {
		jobs = append(jobs, job{"serve status", status.Socket{Path: path, Handler: s.statusServer}.Run})
	}
	if s.mode.Flows != nil {
		jobs = append(jobs, job{"watch connection tracking", func(ctx context.Context) error {
			watchConntrack(ctx, conntrackUsage, s.plan.options.doubts)
			return nil
		}})
	}
	if s.traffic != nil {
		jobs = append(jobs, job{"count traffic", s.traffic.Run})
	}
	if w := s.watchesFirewall(); w != nil {
		jobs = append(jobs, job{"watch the host's firewall", w.Run})
	}
	if o := s.plan.options; o.ConfigFile != "" {
		jobs = append(jobs, job{"watch the configuration file", o.newConfigWatcher(s.plan.config, s.reload).Run})
	}
	err := runAll(ctx, jobs)
	s.leave(ctx)
	if err = errors.Join(err, s.close()); err == nil {
		logger.Info("Stopped, the rules stay in force")
	}
	return err
}

// leave makes the rules yield to another service proxy if one starts. It runs
// although ctx has ended.
func (s *ProxyServer) leave(ctx context.Context) {
	l, ok := s.dataplane.(proxy.Leaver)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err := l.Leave(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "The rules may not yield to another service proxy; if one takes over, remove our rules once it serves")
	}
}

// checkListenAddresses returns an error if a server whose address is mandatory
// cannot bind it. It is called before anything is changed.
func (s *ProxyServer) checkListenAddresses(ctx context.Context) error {
	for _, c := range []struct {
		server *health.Server
		reason reason
	}{{s.healthServer, reasonHealthPort}, {s.metricsServer, reasonMetricsPort}} {
		if err := c.server.Available(ctx); err != nil {
			s.events.recordFinal(ctx, c.reason, err.Error())
			return err
		}
	}
	return nil
}

// serveAndReport returns a job that runs a server, and records an event if it fails.
func (s *ProxyServer) serveAndReport(server *health.Server, why reason) func(context.Context) error {
	return func(ctx context.Context) error {
		err := server.Run(ctx)
		if err != nil {
			s.events.warn(why, err.Error())
		}
		return err
	}
}

func (s *ProxyServer) close() (err error) {
	if s.traffic != nil { // before the dataplane, which it reads
		err = s.traffic.Close()
	}
	if s.flows != nil {
		err = errors.Join(err, s.flows.Close())
	}
	return errors.Join(err, s.dataplane.Close())
}

// job is a component that runs until its context ends.
type job struct {
	what string
	run  func(context.Context) error
}

// errJobEnded makes the errgroup cancel the other jobs when one has ended.
var errJobEnded = errors.New("a job ended")

// runAll runs jobs until ctx ends or one of them ends, because they depend on each
// other. It returns when all have ended, with the errors of all that failed.
func runAll(ctx context.Context, jobs []job) error {
	group, ctx := errgroup.WithContext(ctx)
	errs := make([]error, len(jobs))
	for i, j := range jobs {
		group.Go(func() error {
			if err := j.run(ctx); err != nil {
				errs[i] = fmt.Errorf("%s: %w", j.what, err)
			}
			return errJobEnded
		})
	}
	_ = group.Wait() // returns only the first error; errs has all
	return errors.Join(errs...)
}
