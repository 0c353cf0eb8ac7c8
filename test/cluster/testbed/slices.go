package testbed

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/proxy"
)

// LabelProxyName on a Service says that another proxy serves it.
const LabelProxyName = "service.kubernetes.io/service-proxy-name"

// Phase is the state of a pod.
type Phase uint8

// The phases.
const (
	Ready       Phase = iota // accepts requests
	Terminating              // is stopping, but still answers
	Unready                  // does not answer
)

// conditions returns the conditions of the pod's endpoints.
func (p Phase) conditions() discoveryv1.EndpointConditions {
	is := func(phases ...Phase) *bool {
		yes := slices.Contains(phases, p)
		return &yes
	}
	return discoveryv1.EndpointConditions{
		Ready: is(Ready), Serving: is(Ready, Terminating), Terminating: is(Terminating),
	}
}

// Member is a pod behind a Service.
type Member struct {
	Pod   *Pod
	Phase Phase
	Zone  string // zone hint; empty means none
}

// hints returns the hints that the controller would write.
func (m Member) hints() *discoveryv1.EndpointHints {
	if m.Zone == "" {
		return nil
	}
	return &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: m.Zone}}}
}

// Publish writes the EndpointSlices of a Service, one for each of its
// families, as the endpoint slice controller would.
func (c *Cluster) Publish(ctx context.Context, svc *v1.Service, members ...Member) error {
	for _, family := range svc.Spec.IPFamilies {
		if err := c.Apply(ctx, sliceOf(svc, family, members)); err != nil {
			return err
		}
	}
	return nil
}

// Apply creates or replaces an EndpointSlice.
func (c *Cluster) Apply(ctx context.Context, s *discoveryv1.EndpointSlice) error {
	api := c.Client.DiscoveryV1().EndpointSlices(s.Namespace)
	_, err := api.Update(ctx, s, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(ctx, s, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write EndpointSlice %s: %w", s.Name, err)
	}
	return nil
}

// Unpublish deletes the EndpointSlices of a Service.
func (c *Cluster) Unpublish(ctx context.Context, svc *v1.Service) error {
	for _, family := range svc.Spec.IPFamilies {
		name := sliceName(svc, family)
		err := c.Client.DiscoveryV1().EndpointSlices(svc.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil {
			return fmt.Errorf("delete EndpointSlice %s: %w", name, err)
		}
	}
	return nil
}

func sliceName(svc *v1.Service, family v1.IPFamily) string {
	if family == v1.IPv6Protocol {
		return svc.Name + "-v6"
	}
	return svc.Name + "-v4"
}

func sliceOf(svc *v1.Service, family v1.IPFamily, members []Member) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: sliceName(svc, family), Namespace: svc.Namespace,
			Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name},
			Annotations: map[string]string{
				v1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339Nano),
			},
		},
		AddressType: discoveryv1.AddressType(family),
	}
	// The slices repeat the label of the Service that names its proxy.
	if by, ok := svc.Labels[LabelProxyName]; ok {
		s.Labels[LabelProxyName] = by
	}
	for _, p := range svc.Spec.Ports {
		number := p.TargetPort.IntVal
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &number})
	}
	for _, m := range members {
		i := proxy.IPv4
		if family == v1.IPv6Protocol {
			i = proxy.IPv6
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{m.Pod.Addrs[i].String()},
			Conditions: m.Phase.conditions(),
			Hints:      m.hints(),
			NodeName:   &m.Pod.Node.Name,
		})
	}
	return s
}
