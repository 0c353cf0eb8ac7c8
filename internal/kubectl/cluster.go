package kubectl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"sluice/internal/apiclient"
	"sluice/internal/statusapi"
)

const (
	// ownSelector selects the pods of Sluice's own DaemonSet, and kubeProxySelector
	// those of kubeadm's DaemonSet of kube-proxy, whose image may have been replaced.
	ownSelector       = "app.kubernetes.io/name=sluice"
	kubeProxySelector = "k8s-app=kube-proxy"

	// listPage is how many objects a request for a list returns.
	listPage = 500
)

// cluster finds the daemons of a cluster.
type cluster struct {
	config           *rest.Config
	api              *rest.RESTClient
	namespace        string        // of the daemons' pods
	selector         string        // of the daemons' pods; empty: ownSelector, then kubeProxySelector
	socket           string        // of a daemon, in its pod
	timeout          time.Duration // for the answer of a node
	serviceNamespace string        // the default namespace of Services, from the kubeconfig
}

// open reads the kubeconfig. It does not contact the API server.
func (f *flags) open() (*cluster, error) {
	if _, err := labels.Parse(f.selector); err != nil {
		return nil, fmt.Errorf("--selector %q: want labels like app=sluice", f.selector)
	}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(f.loading, &f.overrides)
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no kubeconfig: use --kubeconfig FILE, or set KUBECONFIG")
	}
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %s", firstLine(err.Error()))
	}
	c := &cluster{config: config, namespace: f.daemonNamespace, selector: f.selector, socket: f.socket, timeout: f.timeout}
	if c.serviceNamespace, _, err = loader.Namespace(); err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.UserAgent = "kubectl-sluice"
	list := rest.CopyConfig(config)
	list.ContentType = runtime.ContentTypeProtobuf
	list.QPS, list.Burst = 50, 300 // as kubectl does
	list.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	c.api, err = apiclient.New(list)
	return c, err
}

// firstLine returns the first line of text.
func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// daemon is the daemon of a node.
type daemon struct {
	node      string
	timeout   time.Duration
	keepAlive bool              // keep the connection, and so the process in the pod, between requests
	client    *statusapi.Client // nil if no request can be sent
	err       error             // why not
}

// daemons returns the daemon of a node or, if node is empty, of all nodes, sorted by
// node.
func (c *cluster) daemons(ctx context.Context, node string) ([]daemon, error) {
	pods, err := c.pods(ctx, node)
	if err != nil {
		return nil, err
	}
	best := map[string]*v1.Pod{} // by node
	for i := range pods {
		if n := pods[i].Spec.NodeName; n != "" && (best[n] == nil || better(&pods[i], best[n])) {
			best[n] = &pods[i]
		}
	}
	names, err := c.nodes(ctx, node)
	if err != nil {
		return nil, err
	}
	for n := range best {
		names = append(names, n)
	}
	slices.Sort(names)
	var all []daemon
	for _, n := range slices.Compact(names) {
		all = append(all, c.daemon(n, best[n]))
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no pods of sluice in namespace %s: use --daemon-namespace or --selector if they are elsewhere", c.namespace)
	}
	return all, nil
}

// better reports whether to ask pod a rather than b: a running pod rather than one that
// is not, then the newer one.
func better(a, b *v1.Pod) bool {
	if (notRunning(a) == nil) != (notRunning(b) == nil) {
		return notRunning(a) == nil
	}
	return b.CreationTimestamp.Before(&a.CreationTimestamp)
}

// notRunning returns why the daemon in a pod cannot be asked, or nil if it runs.
func notRunning(p *v1.Pod) error {
	name := p.Namespace + "/" + p.Name
	if p.DeletionTimestamp != nil {
		return fmt.Errorf("pod %s is terminating: try again", name)
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == containerName(p) && s.State.Running == nil {
			reason := "it has not started"
			if s.State.Waiting != nil && s.State.Waiting.Reason != "" {
				reason = s.State.Waiting.Reason
			}
			if s.State.Terminated != nil {
				reason = fmt.Sprintf("it ended with exit code %d", s.State.Terminated.ExitCode)
			}
			return fmt.Errorf("pod %s is not running: %s (kubectl -n %s describe pod %s)", name, reason, p.Namespace, p.Name)
		}
	}
	if p.Status.Phase != v1.PodRunning {
		return fmt.Errorf("pod %s is %s (kubectl -n %s describe pod %s)", name, cmp.Or(p.Status.Phase, v1.PodPending), p.Namespace, p.Name)
	}
	return nil
}

// containerName returns the name of the daemon's container. A pod may have sidecars.
func containerName(p *v1.Pod) string {
	for _, c := range p.Spec.Containers {
		if c.Name == "sluice" || c.Name == "kube-proxy" {
			return c.Name
		}
	}
	return p.Spec.Containers[0].Name
}

// pods lists the pods of daemons on a node or, if node is empty, on all nodes.
func (c *cluster) pods(ctx context.Context, node string) ([]v1.Pod, error) {
	selectors := []string{c.selector}
	if c.selector == "" {
		selectors = []string{ownSelector, kubeProxySelector}
	}
	options := metav1.ListOptions{Limit: listPage}
	if node != "" {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}
	for _, s := range selectors {
		options.LabelSelector = s
		var all []v1.Pod
		for more := true; more; more = options.Continue != "" {
			var list v1.PodList
			if err := c.list(ctx, "pods", c.namespace, options, &list); err != nil {
				return nil, err
			}
			all, options.Continue = append(all, list.Items...), list.Continue
		}
		if len(all) > 0 {
			return all, nil
		}
	}
	return nil, nil
}

// nodes returns node, if it exists or that cannot be found out, or if it is empty the
// names of all nodes that should have a daemon. If the user may not list nodes, it
// returns none: nodes without a pod of the daemon are then not shown.
func (c *cluster) nodes(ctx context.Context, node string) ([]string, error) {
	if node != "" {
		err := c.api.Get().AbsPath(apiclient.Path("")).Resource("nodes").Name(node).Do(ctx).Error()
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("no node %s (kubectl get nodes)", node)
		}
		return []string{node}, nil
	}
	options := metav1.ListOptions{Limit: listPage, LabelSelector: v1.LabelOSStable + "!=windows"}
	var names []string
	for {
		var list v1.NodeList
		err := c.list(ctx, "nodes", "", options, &list)
		if errors.Is(err, errForbidden) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return names, nil
		}
	}
}

// errForbidden means that the user lacks a permission.
var errForbidden = errors.New("ask an administrator of the cluster for it")

// list requests a page of objects; of all namespaces, or of a resource without
// namespaces, if namespace is empty.
func (c *cluster) list(ctx context.Context, resource, namespace string, o metav1.ListOptions, to runtime.Object) error {
	err := c.api.Get().AbsPath(apiclient.Path("")).NamespaceIfScoped(namespace, namespace != "").Resource(resource).
		SpecificallyVersionedParams(&o, metav1.ParameterCodec, metav1.Unversioned).Do(ctx).Into(to)
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("no permission to list %s in namespace %s: %w", resource, namespace, errForbidden)
	case apierrors.IsUnauthorized(err):
		return errors.New("the API server does not accept your credentials: log in again, or use another --context")
	default:
		return fmt.Errorf("list %s: %s", resource, firstLine(err.Error()))
	}
}
