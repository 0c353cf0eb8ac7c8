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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"sluice/internal/source"
)

// failing is a server that refuses requests for as long as there is an error.
type failing struct {
	refuse func(tries int) error // after so many lists in the form of a watch

	began   time.Time
	watches []time.Duration // when a list in the form of a watch was asked for
	lists   int
}

func (s *failing) List(context.Context, metav1.ListOptions) (runtime.Object, error) {
	s.lists++
	return &v1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, s.refuse(len(s.watches))
}

func (s *failing) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w := watch.NewRaceFreeFake()
	if isWatchList(o) {
		s.watches = append(s.watches, time.Since(s.began))
		w.Action(watch.Bookmark, &v1.Service{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}})
	}
	return w, s.refuse(len(s.watches))
}

// busy returns a server that has too many requests until a number of them were refused. It says
// after how many seconds to ask again, unless that is 0.
func busy(refusals, retryAfter int) *failing {
	return &failing{began: time.Now(), refuse: func(tries int) error {
		if tries <= refusals {
			return apierrors.NewTooManyRequests("busy", retryAfter)
		}
		return nil
	}}
}

// watched plays an informer on a server for a while, and returns how long
// it took to end.
func watched(s listerWatcher, play func(*store[*v1.Service])) time.Duration {
	ctx, cancel := context.WithCancel(context.Background())
	c := new(Contacts).of("services")
	to := newStore(ctx, source.NewServiceConfig(noHandler{}), c)
	f := newKindWatch(to, &v1.Service{}, s, &watchErrors{resource: "services", contact: c})
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.run(ctx)
	}()
	play(to)
	stopped := time.Now()
	cancel()
	<-done
	return time.Since(stopped)
}

type noHandler struct{ source.Handler }

func (noHandler) OnServiceUpdate(*v1.Service, *v1.Service) {}
func (noHandler) OnServiceSynced()                         {}

// TestBusyServerIsGivenTime asks a server that is too busy for a stream again
// after the time that it names, or after growing ones, and never for a plain list,
// which would cost the server more.
func TestBusyServerIsGivenTime(t *testing.T) {
	for name, tt := range map[string]struct {
		retryAfter int
		least      []time.Duration
	}{
		"it says when":    {7, []time.Duration{7 * time.Second, 7 * time.Second, 7 * time.Second, 7 * time.Second}},
		"it does not say": {0, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := busy(4, tt.retryAfter)
				watched(s, func(to *store[*v1.Service]) {
					<-to.listed
					synctest.Wait()
				})
				if len(s.watches) != 5 || s.lists != 0 {
					t.Fatalf("%d streams and %d plain lists were asked for, want 5 and 0", len(s.watches), s.lists)
				}
				for i, least := range tt.least {
					if pause := s.watches[i+1] - s.watches[i]; pause < least || pause > 2*least {
						t.Errorf("pause %d was %v, want from %v to %v", i, pause, least, 2*least)
					}
				}
			})
		})
	}
}

// TestBusyServerDoesNotHoldUpTheEnd stops while a pause is on.
func TestBusyServerDoesNotHoldUpTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := busy(1000, 600)
		took := watched(s, func(*store[*v1.Service]) {
			time.Sleep(time.Hour)
			synctest.Wait()
		})
		if took != 0 {
			t.Errorf("Run went on for %v after its context had ended", took)
		}
		if n := len(s.watches); n < 5 || n > 130 {
			t.Errorf("a server that wants ten minutes was asked %d times in an hour", n)
		}
	})
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
				back := time.Now().Add(10 * time.Minute)
				s := &failing{began: time.Now(), refuse: func(int) error {
					if time.Now().Before(back) {
						return tt.with
					}
					return nil
				}}
				watched(s, func(to *store[*v1.Service]) {
					<-to.listed
					if late := time.Since(back); late < 0 || late > tt.within {
						t.Errorf("the server is found %v after it is back, want at most %v", late, tt.within)
					}
				})
				if s.lists > tt.tries {
					t.Errorf("it was asked %d times meanwhile, want at most %d", s.lists, tt.tries)
				}
			})
		})
	}
}
