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
	// ownSelector finds the pods of Sluice's own DaemonSet, and exchangedSelector
	// those of kubeadm's kube-proxy, whose image may have been exchanged.
	ownSelector       = "app.kubernetes.io/name=sluice"
	exchangedSelector = "k8s-app=kube-proxy"

	// listPage is how many objects are asked for at once.
	listPage = 500
)

// cluster is where the daemons are.
type cluster struct {
	config    *rest.Config
	api       *rest.RESTClient
	namespace string        // of the daemons' pods
	selector  string        // of the daemons' pods; empty: either that there is
	socket    string        // of a daemon, in its pod
	timeout   time.Duration // for the answer of a node
	services  string        // the namespace of Services that are named without one
}

// open reads the kubeconfig.
func (f *flags) open() (*cluster, error) {
	if _, err := labels.Parse(f.selector); err != nil {
		return nil, fmt.Errorf("--selector %q: want labels like app=sluice", f.selector)
	}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(f.loading, &f.overrides)
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no kubeconfig says where the cluster is: give --kubeconfig FILE, or set KUBECONFIG")
	}
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %s", firstLine(err.Error()))
	}
	c := &cluster{config: config, namespace: f.daemonNamespace, selector: f.selector, socket: f.socket, timeout: f.timeout}
	if c.services, _, err = loader.Namespace(); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	config.UserAgent = "kubectl-sluice"
	list := rest.CopyConfig(config)
	list.ContentType = runtime.ContentTypeProtobuf
	list.QPS, list.Burst = 50, 300 // as kubectl
	list.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	c.api, err = apiclient.New(list)
	return c, err
}

// firstLine cuts what has more lines.
func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// daemon is the daemon of a node.
type daemon struct {
	node    string
	timeout time.Duration
	keep    bool              // the connection, for who will ask again
	client  *statusapi.Client // nil: it cannot be asked
	err     error             // why not
}

// daemons returns the daemon of a node, or of all nodes, in order.
func (c *cluster) daemons(ctx context.Context, node string) ([]daemon, error) {
	pods, err := c.pods(ctx, node)
	if err != nil {
		return nil, err
	}
	best := map[string]*v1.Pod{}
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
		return nil, fmt.Errorf("no pods of sluice in namespace %s: --daemon-namespace and --selector say where they are", c.namespace)
	}
	return all, nil
}

// better prefers the pod that runs, and then the younger.
func better(a, b *v1.Pod) bool {
	if (notRunning(a) == nil) != (notRunning(b) == nil) {
		return notRunning(a) == nil
	}
	return b.CreationTimestamp.Before(&a.CreationTimestamp)
}

// notRunning says why nothing can be asked in a pod.
func notRunning(p *v1.Pod) error {
	name := p.Namespace + "/" + p.Name
	if p.DeletionTimestamp != nil {
		return fmt.Errorf("pod %s is about to go: try again", name)
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == container(p) && s.State.Running == nil {
			reason := "has not started"
			if s.State.Waiting != nil && s.State.Waiting.Reason != "" {
				reason = s.State.Waiting.Reason
			}
			if s.State.Terminated != nil {
				reason = fmt.Sprintf("has ended with exit code %d", s.State.Terminated.ExitCode)
			}
			return fmt.Errorf("pod %s does not run: %s (kubectl -n %s describe pod %s)", name, reason, p.Namespace, p.Name)
		}
	}
	if p.Status.Phase != v1.PodRunning {
		return fmt.Errorf("pod %s is %s (kubectl -n %s describe pod %s)", name, cmp.Or(p.Status.Phase, v1.PodPending), p.Namespace, p.Name)
	}
	return nil
}

// container names the daemon's container; others may have been put beside it.
func container(p *v1.Pod) string {
	for _, c := range p.Spec.Containers {
		if c.Name == "sluice" || c.Name == "kube-proxy" {
			return c.Name
		}
	}
	return p.Spec.Containers[0].Name
}

// pods lists the pods of daemons, on one node or on all.
func (c *cluster) pods(ctx context.Context, node string) ([]v1.Pod, error) {
	selectors := []string{c.selector}
	if c.selector == "" {
		selectors = []string{ownSelector, exchangedSelector}
	}
	options := metav1.ListOptions{Limit: listPage}
	if node != "" {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}
	for _, s := range selectors {
		options.LabelSelector, options.Continue = s, ""
		var all []v1.Pod
		for list := (v1.PodList{}); ; options.Continue = list.Continue {
			list = v1.PodList{}
			if err := c.list(ctx, "pods", c.namespace, options, &list); err != nil {
				return nil, err
			}
			if all = append(all, list.Items...); list.Continue == "" {
				break
			}
		}
		if len(all) > 0 {
			return all, nil
		}
	}
	return nil, nil
}

// nodes names all nodes that should have a daemon, or the one that is asked for.
// Who may not list nodes does without those that have no pod.
func (c *cluster) nodes(ctx context.Context, node string) ([]string, error) {
	if node != "" {
		err := c.api.Get().AbsPath(apiclient.Path("")).Resource("nodes").Name(node).Do(ctx).Error()
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("there is no node %s (kubectl get nodes)", node)
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

// errForbidden is that the user lacks a right.
var errForbidden = errors.New("ask who manages the cluster for it")

// list asks for a page of objects.
func (c *cluster) list(ctx context.Context, resource, namespace string, o metav1.ListOptions, to runtime.Object) error {
	err := c.api.Get().AbsPath(apiclient.Path("")).NamespaceIfScoped(namespace, namespace != "").Resource(resource).
		SpecificallyVersionedParams(&o, metav1.ParameterCodec, metav1.Unversioned).Do(ctx).Into(to)
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("no right to list %s in namespace %s: %w", resource, namespace, errForbidden)
	case apierrors.IsUnauthorized(err):
		return errors.New("the API server does not know who asks: log in again, or use another --context")
	default:
		return fmt.Errorf("ask the API server for %s: %s", resource, firstLine(err.Error()))
	}
}
