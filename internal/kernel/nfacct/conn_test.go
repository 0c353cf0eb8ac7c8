package nfacct

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// TestKernelWithoutAccounting asks for a subsystem that no kernel has.
func TestKernelWithoutAccounting(t *testing.T) {
	c := openInNamespace(t)
	c.subsystem = 200
	_, err := c.Counter("one")
	for _, err := range []error{err, c.Ensure("one"), c.Delete("one")} {
		if !errors.Is(err, ErrUnsupported) || !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("error %v; want %v", err, ErrUnsupported)
		}
	}
}

func TestFakeWithoutAccounting(t *testing.T) {
	k := NewFake()
	ensure(t, k, "one")
	k.Fail(ErrUnsupported)
	_, err := k.Counter("one")
	for _, err := range []error{err, k.Ensure("two"), k.Delete("one")} {
		if !errors.Is(err, ErrUnsupported) {
			t.Errorf("error %v; want %v", err, ErrUnsupported)
		}
	}
	if got := k.Names(); !slices.Equal(got, []string{"one"}) {
		t.Errorf("counters %q; want the one from before", got)
	}
}

// TestNamespaces wants counters to belong to a namespace, and a connection to
// stay in its own, wherever it is used.
func TestNamespaces(t *testing.T) {
	first := openInNamespace(t)
	ensure(t, first, "one")
	var wait sync.WaitGroup
	wait.Go(func() {
		runtime.LockOSThread() // for good: the thread ends with the function
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		second, err := Open()
		if err != nil {
			t.Error(err)
			return
		}
		defer second.Close()
		if _, err := second.Counter("one"); !errors.Is(err, ErrNotFound) {
			t.Errorf("a counter of another namespace: %v; want %v", err, ErrNotFound)
		}
		wantCount(t, first, "one", Count{})
	})
	wait.Wait()
}

// TestManyAtOnce wants everybody to get the answer to their own question.
func TestManyAtOnce(t *testing.T) {
	c := openInNamespace(t)
	names := []string{"one", "two", "three"}
	var wait sync.WaitGroup
	for _, name := range names {
		wait.Go(func() {
			for range 200 {
				if _, err := c.Counter(name); !errors.Is(err, ErrNotFound) {
					t.Errorf("%s: error %v; want %v", name, err, ErrNotFound)
				}
				if err := c.Ensure(name); err != nil {
					t.Error(err)
				}
				wantCount(t, c, name, Count{})
				wantDelete(t, c, name, nil)
			}
		})
	}
	wait.Wait()
}

// answer is the body of an answer with some attributes.
func answer(attrs ...*nl.RtAttr) []byte {
	b := (&nl.Nfgenmsg{}).Serialize()
	for _, a := range attrs {
		b = append(b, a.Serialize()...)
	}
	return b
}

func TestDecode(t *testing.T) {
	name := nl.NewRtAttr(attrName, nl.ZeroTerminated("one"))
	packets := nl.NewRtAttr(attrPackets, []byte{0, 0, 0, 0, 0, 0, 1, 2})
	bytes := nl.NewRtAttr(attrBytes, []byte{1, 0, 0, 0, 0, 0, 0, 3})
	use := nl.NewRtAttr(4, []byte{0, 0, 0, 1})
	short := nl.NewRtAttr(attrBytes, []byte{0, 0, 0, 1})
	tests := []struct {
		name string
		body []byte
		want Count
		err  error
	}{
		{"all", answer(name, packets, bytes, use), Count{258, 1<<56 + 3}, nil},
		{"another order", answer(use, bytes, packets), Count{258, 1<<56 + 3}, nil},
		{"no packets", answer(name, bytes), Count{}, errMalformed},
		{"no bytes", answer(name, packets), Count{}, errMalformed},
		{"short number", answer(packets, short), Count{}, errMalformed},
		{"cut off", answer(packets, bytes)[:20], Count{}, errMalformed},
		{"header only", answer(), Count{}, errMalformed},
		{"nothing", nil, Count{}, errMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := decode(tt.body); got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("%+v, error %v; want %+v, %v", got, err, tt.want, tt.err)
			}
		})
	}
}

// FuzzDecode wants no bytes to break the decoder.
func FuzzDecode(f *testing.F) {
	f.Add(answer(nl.NewRtAttr(attrPackets, make([]byte, 8)), nl.NewRtAttr(attrBytes, make([]byte, 8))))
	f.Add([]byte{255, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, err := decode(b); err != nil && n != (Count{}) {
			t.Errorf("%+v with error %v", n, err)
		}
	})
}
