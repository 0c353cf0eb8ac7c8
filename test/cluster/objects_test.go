package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/conformance"
	"sluice/test/cluster/pki"
	"sluice/test/cluster/testbed"
)

// api is the API server as a daemon's source of objects.
type api struct {
	gate    *testbed.Gate
	user    pki.User
	dir     string            // for the objects, as a folder
	written map[string]string // objects as they were meant to be, by kind and name
	spaces  map[string]bool   // the namespaces that there are
	refused map[string]error  // what the API server did not take, by kind and name; nil: it must take all
}

// Write creates, updates and deletes objects, as their owners would.
func (a *api) Write(ctx context.Context, w *conformance.World) (*conformance.World, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	want := map[string]string{}
	for _, o := range w.Objects() {
		text, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		want[name(o)] = string(text)
	}
	for old := range a.written {
		if want[old] == "" {
			if err := remove(ctx, old); err != nil {
				return nil, err
			}
			delete(a.written, old)
		}
	}
	for _, o := range w.Objects() {
		if a.written[name(o)] == want[name(o)] {
			continue
		}
		if err := a.makeNamespace(ctx, o.GetNamespace()); err != nil {
			return nil, err
		}
		err := put(ctx, o)
		if a.refused != nil && (apierrors.IsInvalid(err) || apierrors.IsForbidden(err)) {
			a.refused[name(o)], err = err, nil // for good: the world is without it
		}
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", name(o), err)
		}
		a.written[name(o)] = want[name(o)]
	}
	return a.read(ctx, w)
}

// makeNamespace makes a namespace, which stays.
func (a *api) makeNamespace(ctx context.Context, name string) error {
	if name == "" || a.spaces[name] {
		return nil
	}
	ns := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := bed.Client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	a.spaces[name] = true
	return nil
}

// name is an object's kind, namespace and name.
func name(o metav1.Object) string { return fmt.Sprintf("%T/%s/%s", o, o.GetNamespace(), o.GetName()) }

// remove deletes an object of ours.
func remove(ctx context.Context, object string) (err error) {
	parts := strings.Split(object, "/")
	kind, namespace, name := parts[0], parts[1], parts[2]
	switch kind {
	case "*v1.Service":
		err = bed.Client.CoreV1().Services(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	case "*v1.EndpointSlice":
		err = bed.Client.DiscoveryV1().EndpointSlices(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	case "*v1.ServiceCIDR":
		err = bed.Client.NetworkingV1().ServiceCIDRs().Delete(ctx, name, metav1.DeleteOptions{})
	case "*v1.Node":
		err = bed.Client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
	default:
		panic("unknown kind " + kind)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s: %w", object, err)
	}
	return nil
}

// put makes an object what it is meant to be.
func put(ctx context.Context, o metav1.Object) error {
	switch o := o.(type) {
	case *v1.Node:
		return putNode(ctx, o)
	case *networkingv1.ServiceCIDR:
		return putServiceCIDR(ctx, o)
	case *v1.Service:
		return putService(ctx, valid(o))
	case *discoveryv1.EndpointSlice:
		err := bed.Apply(ctx, o)
		if apierrors.IsInvalid(err) { // some fields are for good
			err = errors.Join(remove(ctx, name(o)), bed.Apply(ctx, o))
		}
		return err
	default:
		panic(fmt.Sprintf("unknown kind %T", o))
	}
}

// putNode creates a Node, or gives it other labels.
func putNode(ctx context.Context, n *v1.Node) error {
	nodes := bed.Client.CoreV1().Nodes()
	if _, err := nodes.Update(ctx, n, metav1.UpdateOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	there, err := nodes.Create(ctx, n, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	there.Status.Addresses = n.Status.Addresses
	_, err = nodes.UpdateStatus(ctx, there, metav1.UpdateOptions{})
	return err
}

// putServiceCIDR replaces a ServiceCIDR, which cannot be changed, and says that it is
// ready, as its controller would.
func putServiceCIDR(ctx context.Context, c *networkingv1.ServiceCIDR) error {
	api := bed.Client.NetworkingV1().ServiceCIDRs()
	if err := remove(ctx, name(c)); err != nil {
		return err
	}
	there, err := api.Create(ctx, c, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	there.Status.Conditions = []metav1.Condition{{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.Now(),
	}}
	_, err = api.UpdateStatus(ctx, there, metav1.UpdateOptions{})
	return err
}

// valid returns a Service as the API server takes it.
func valid(s *v1.Service) *v1.Service {
	s = s.DeepCopy()
	policy := v1.IPFamilyPolicySingleStack
	if len(s.Spec.ClusterIPs) > 1 {
		policy = v1.IPFamilyPolicyRequireDualStack
	}
	s.Spec.IPFamilyPolicy = &policy
	if len(s.Spec.ClusterIPs) > 0 {
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	}
	if s.CreationTimestamp = (metav1.Time{}); s.Spec.Type == v1.ServiceTypeExternalName {
		s.Spec = v1.ServiceSpec{Type: s.Spec.Type, ExternalName: "elsewhere.example", Ports: s.Spec.Ports}
	}
	if s.Spec.Type == v1.ServiceTypeClusterIP {
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].NodePort = 0
		}
		if len(s.Spec.ExternalIPs) == 0 {
			s.Spec.ExternalTrafficPolicy = ""
		}
	}
	if s.Spec.Type != v1.ServiceTypeLoadBalancer {
		s.Spec.LoadBalancerSourceRanges, s.Status = nil, v1.ServiceStatus{}
	}
	return s
}

// putService updates or creates a Service; one that has other addresses is another one.
// A new range of addresses is not known at once, and the API server may believe for
// minutes that an address is still a former Service's: what repairs lost addresses ran
// while that went.
func putService(ctx context.Context, s *v1.Service) error {
	api := bed.Client.CoreV1().Services(s.Namespace)
	there, err := api.Update(ctx, s, metav1.UpdateOptions{})
	if apierrors.IsInvalid(err) {
		err = errors.Join(remove(ctx, name(s)), err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); err != nil && time.Now().Before(end); <-tick.C {
		if there, err = api.Create(ctx, s, metav1.CreateOptions{}); err == nil {
			break
		}
		if apierrors.IsInvalid(err) && !strings.Contains(err.Error(), "spec.clusterIPs") {
			break // for good
		}
		if strings.Contains(err.Error(), "already allocated") {
			err = errors.Join(err, free(ctx, s.Spec.ClusterIPs))
		}
	}
	if err != nil || equality.Semantic.DeepEqual(there.Status.LoadBalancer, s.Status.LoadBalancer) {
		return err
	}
	there.Status.LoadBalancer = s.Status.LoadBalancer
	_, err = api.UpdateStatus(ctx, there, metav1.UpdateOptions{})
	return err
}

// free deletes what says that addresses are taken.
func free(ctx context.Context, addresses []string) error {
	var errs []error
	for _, a := range addresses {
		if err := bed.Client.NetworkingV1().IPAddresses().Delete(ctx, a, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// read returns a world with the objects that there are, and writes them to the folder.
func (a *api) read(ctx context.Context, w *conformance.World) (*conformance.World, error) {
	services, err := bed.Client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	endpoints, err := bed.Client.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	cidrs, err := bed.Client.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := *w
	out.Services, out.Slices = pointers(services.Items), pointers(endpoints.Items)
	objects := slices.DeleteFunc(out.Objects(), func(o metav1.Object) bool { _, own := o.(*networkingv1.ServiceCIDR); return own })
	for _, c := range cidrs.Items {
		c.TypeMeta = metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "ServiceCIDR"}
		objects = append(objects, &c)
	}
	return &out, a.dump(objects)
}

func pointers[T any](list []T) (out []*T) {
	for i := range list {
		out = append(out, &list[i])
	}
	return out
}

// dump writes objects to the folder.
func (a *api) dump(objects []metav1.Object) error {
	var text strings.Builder
	for _, o := range objects {
		o.SetManagedFields(nil)
		one, err := json.Marshal(o)
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%s\n---\n", one)
	}
	return os.WriteFile(filepath.Join(a.dir, "objects.yaml"), []byte(text.String()), 0o644)
}

// Flags tell a daemon where the API server is.
func (a *api) Flags() []string { return []string{"--kubeconfig", a.user.Kubeconfig()} }

// Folder has what was last read.
func (a *api) Folder(context.Context) (string, error) { return a.dir, nil }

// Close deletes all objects.
func (a *api) Close() error {
	a.gate.Shut()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	for old := range a.written {
		errs = append(errs, remove(ctx, old))
	}
	return errors.Join(errs...)
}
