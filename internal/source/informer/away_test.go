package informer

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// failing is a server that fails for a while.
type failing struct {
	with  error
	until time.Time
	tries int
}

func (s *failing) List(context.Context, metav1.ListOptions) (runtime.Object, error) {
	s.tries++
	if time.Now().Before(s.until) {
		return nil, s.with
	}
	return &v1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
}

func (s *failing) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if time.Now().Before(s.until) {
		return nil, s.with
	}
	w := watch.NewRaceFreeFake()
	if isWatchList(o) {
		w.Action(watch.Bookmark, &v1.Service{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}})
	}
	return w, nil
}

// TestServerIsBack lets a server fail for ten minutes. One that could not be reached
// is found again at once, as what was missed meanwhile is still sent to endpoints that
// may be gone; one that answers with errors has been asked a few times only.
func TestServerIsBack(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	reset := &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	for name, tt := range map[string]struct {
		with   error
		within time.Duration
		tries  int
	}{
		"refused":   {refused, 10 * time.Second, 300},
		"reset":     {reset, 10 * time.Second, 300},
		"in itself": {errors.New("etcd does not answer"), time.Minute, 60},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &failing{with: tt.with, until: time.Now().Add(10 * time.Minute)}
				watched(s, func(to *store[*v1.Service]) {
					<-to.listed
					if late := time.Since(s.until); late < 0 || late > tt.within {
						t.Errorf("the server is found %v after it is back, want at most %v", late, tt.within)
					}
				})
				if s.tries > tt.tries {
					t.Errorf("it was asked %d times meanwhile, want at most %d", s.tries, tt.tries)
				}
			})
		})
	}
}
