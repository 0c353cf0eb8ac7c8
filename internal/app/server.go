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
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/source/manifest"
	"sluice/internal/status"
	"sluice/internal/traffic"
)

const (
	// fullSyncPeriod is the least time between two full syncs that nobody asked
	// for. What others change is noticed without them, so they are a safety net.
	fullSyncPeriod = time.Hour
	// leaveTime is how long the last write may take.
	leaveTime = 5 * time.Second
)

// healthTimeout is how long a sync that was asked for may take before the proxy
// counts as unhealthy: two sync periods. An hour is the default of mode nftables.
func healthTimeout(c config.Configuration) time.Duration {
	if c.SyncPeriod >= fullSyncPeriod {
		return 2 * config.UsualSyncPeriod
	}
	return 2 * c.SyncPeriod
}

// plan is all that a ProxyServer must know, checked.
type plan struct {
	options   *Options
	config    config.Configuration
	balancing resolve.Balancing
	allowed   apiobject.Allowed
	node      string
	from      objectSource
	status    statusListener
	priority  uint32 // of the process, on Windows
}

// ProxyServer joins a source, the engine, a dataplane and all who watch them,
// and runs them.
type ProxyServer struct {
	plan     plan
	families []proxy.Family
	events   *recorder

	dataplane proxy.Dataplane
	mode      dataplane.Mode
	provider  *engine.Engine
	configure func(rules resolve.Settings, minSyncPeriod, syncPeriod time.Duration) // the provider, while it runs
	inForce   func()                                                                // called when rules are in force
	ready     chan struct{}                                                         // closed then

	unservable chan error            // why the Node's family cannot be served
	flows      ct.Interface          // nil: the mode ends stale connections itself
	conntrack  *conntrack.Reconciler // nil as well
	health     *health.ProxyHealth
	checks     *health.ServiceChecks
	refusals   *refusals
	metrics    *metrics.Metrics
	traffic    *traffic.Collector                              // nil: it is not counted
	uncounted  string                                          // why
	configz    atomic.Pointer[v1alpha1.KubeProxyConfiguration] // in force

	problemEvents *rate.Limiter

	healthServer  *health.Server
	metricsServer *health.Server
	statusServer  http.Handler
	files         atomic.Pointer[[]manifest.Problem]
	statusTCP     *health.Server
}

// NewProxyServer asks the kernel what it can do and opens the dataplane. The
// kernel's rules stay as they are before Run.
func NewProxyServer(ctx context.Context, p plan) (*ProxyServer, error) {
	klog.FromContext(ctx).Info("Starting", "version", p.options.version.reported(), "mode", p.config.Mode,
		"source", p.from.String(), "node", p.node)
	mode, settings, err := p.options.probeMode(ctx, p.config)
	if err != nil {
		return nil, err
	}
	_, missing := enabledFamilies()
	klog.FromContext(ctx).Info("Serving", append([]any{"families", fmt.Sprint(settings.Families)}, because(missing)...)...)
	s := &ProxyServer{
		plan: p, mode: mode, families: settings.Families, ready: make(chan struct{}), unservable: make(chan error, 1),
		problemEvents: rate.NewLimiter(rate.Every(refusalEvery), refusalBurst),
	}
	s.inForce = sync.OnceFunc(func() { close(s.ready) })
	if err := s.servesFamilyOf(p.config.BindAddress, "bindAddress"); err != nil {
		return nil, err
	}
	rules, err := p.rules(ctx, s.families)
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
	if err := s.join(ctx, rules); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// fullSyncPeriod returns the time from one full sync to the next.
func (s *ProxyServer) fullSyncPeriod(c config.Configuration) time.Duration {
	if s.mode.Polls {
		return c.SyncPeriod
	}
	return max(c.SyncPeriod, fullSyncPeriod)
}

// join makes the parts and tells them of each other.
func (s *ProxyServer) join(ctx context.Context, rules resolve.Settings) error {
	c := s.plan.config
	registry := k8smetrics.NewKubeRegistry()
	var own []proxy.Metric
	if d, ok := s.dataplane.(proxy.Measured); ok {
		own = d.Metrics(ctx)
	}
	ours := trackingMetrics(tracked)
	if s.traffic != nil {
		ours = append(ours, s.traffic.Metrics(ctx)...)
	}
	m, err := metrics.New(metrics.Settings{Registry: registry, Families: s.families, Own: own, Ours: ours})
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
	if s.plan.from.manifests != "" {
		s.health.SyncNode(&v1.Node{}) // a folder may have none, and is no cluster that drains nodes
	}
	s.checks = health.NewServiceChecks(health.CheckSettings{
		Healthy: s.health.Healthy, Addresses: link.Conn{}, Failed: s.checkFailed,
	})
	if s.flows != nil {
		s.conntrack = conntrack.New(conntrack.Settings{
			Flows: s.flows, LocalAddrs: link.Conn{}.LocalPrefixes, Passed: m.ConntrackReconciled, ThreadTime: threadTime(),
		})
	}
	e := engine.New(engine.Settings{
		Dataplane:     s.dataplane,
		Resolver:      resolve.New(rules),
		MinSyncPeriod: c.MinSyncPeriod,
		SyncPeriod:    s.fullSyncPeriod(c),
		Observer:      observers{s, m},
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

// checkFailed reports that a Service's health check cannot be answered.
func (s *ProxyServer) checkFailed(c *proxy.HealthCheck, err error) {
	about := serviceReference(types.NamespacedName{Namespace: c.Key.Namespace, Name: c.Key.Name})
	s.events.record(about, v1.EventTypeWarning, reasonServiceHealth,
		fmt.Sprintf("node %s cannot answer health checks of port %d: %v", s.plan.node, c.Port, err))
}

// Run proxies until ctx ends, and then returns nil. The rules stay in force.
func (s *ProxyServer) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	s.events = newRecorder(ctx, s.plan.from.client, s.plan.node)
	if err := s.available(ctx); err != nil {
		return errors.Join(err, s.close())
	}
	for _, p := range fitHost(ctx, s.plan) {
		s.events.warn(reasonPlatform, p.String())
	}
	s.events.record(s.events.node, v1.EventTypeNormal, reasonStarting, "")
	_, carries := s.dataplane.(proxy.Runner) // connections pass this process
	jobs := []job{
		{"save memory", func(ctx context.Context) error { return tuneGC(ctx, s.ready, !carries) }},
		{"read objects", func(ctx context.Context) error {
			return s.plan.from.open(s.plan.node, func(all []manifest.Problem) { s.files.Store(&all) }).Run(ctx, s.provider)
		}},
		{"sync", s.provider.SyncLoop},
		{"serve the node's family", s.served},
		{"report refused Services", s.refusals.Run},
		{"take over from kube-proxy", s.takeOver},
		{"answer health checks of Services", s.checks.Run},
		{"serve health", s.listening(s.healthServer, reasonHealthPort)},
		{"serve metrics", s.listening(s.metricsServer, reasonMetricsPort)},
		{"serve status over TCP", s.statusTCP.Run},
	}
	if s.conntrack != nil {
		jobs = append(jobs, job{"reconcile connections", s.conntrack.Run})
	}
	if path := s.plan.options.StatusSocket; path != "" {
		jobs = append(jobs, job{"serve status", status.Socket{Path: path, Handler: s.statusServer}.Run})
	}
	if s.traffic != nil {
		jobs = append(jobs, job{"count traffic", s.traffic.Run})
	}
	if o := s.plan.options; o.ConfigFile != "" {
		jobs = append(jobs, job{"follow the configuration", o.newConfigWatcher(s.plan.config, s.reload).Run})
	}
	err := runAll(ctx, jobs)
	s.leave(ctx)
	if err = errors.Join(err, s.close()); err == nil {
		logger.Info("Stopped, the rules stay in force")
	}
	return err
}

// leave lets the rules give way to another proxy, should one come. That ctx has
// ended is why we leave.
func (s *ProxyServer) leave(ctx context.Context) {
	l, ok := s.dataplane.(proxy.Leaver)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	if err := l.Leave(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "If another service proxy follows, remove our rules once it serves")
	}
}

// available returns an error if a server that must have its address cannot have
// it, before anything is changed.
func (s *ProxyServer) available(ctx context.Context) error {
	for _, c := range []struct {
		server *health.Server
		reason reason
	}{{s.healthServer, reasonHealthPort}, {s.metricsServer, reasonMetricsPort}} {
		if err := c.server.Available(ctx); err != nil {
			s.events.last(ctx, c.reason, err.Error())
			return err
		}
	}
	return nil
}

// listening runs a server, and reports when it cannot have its address.
func (s *ProxyServer) listening(server *health.Server, why reason) func(context.Context) error {
	return func(ctx context.Context) error {
		err := server.Run(ctx)
		if err != nil {
			s.events.warn(why, err.Error())
		}
		return err
	}
}

func (s *ProxyServer) close() (err error) {
	if s.traffic != nil { // It asks the dataplane.
		err = s.traffic.Close()
	}
	if s.flows != nil {
		err = errors.Join(err, s.flows.Close())
	}
	return errors.Join(err, s.dataplane.Close())
}

// job is something that runs until ctx ends.
type job struct {
	what string
	run  func(context.Context) error
}

// errEnded ends all jobs when one has ended.
var errEnded = errors.New("ended")

// runAll runs jobs until ctx ends or one of them does, since none can do without
// the others, and returns when all have ended. The error names every job that
// failed.
func runAll(ctx context.Context, jobs []job) error {
	group, ctx := errgroup.WithContext(ctx)
	errs := make([]error, len(jobs))
	for i, j := range jobs {
		group.Go(func() error {
			if err := j.run(ctx); err != nil {
				errs[i] = fmt.Errorf("%s: %w", j.what, err)
			}
			return errEnded
		})
	}
	_ = group.Wait() // it tells of the first only
	return errors.Join(errs...)
}
