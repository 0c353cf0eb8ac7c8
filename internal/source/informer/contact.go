package informer

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// answerTime is how long the server may take to answer the request of a watch before it
// counts as lost.
const answerTime = 10 * time.Second

const unanswered = "the API server does not answer"

// Lost is a kind of objects that the API server is not heard from about, so that changes of
// them are not known.
type Lost struct {
	Resource string // for example services
	Reason   string
	Since    time.Time // when the first attempt failed
	Heard    time.Time // when the server was last heard from about it; zero: never
	NextTry  time.Time // when it is asked again; zero: not known
}

// contacts knows the kinds that are lost, and reports them whenever they change.
type contacts struct {
	report func([]Lost) // by resource; called with the lock held

	mu   sync.Mutex
	lost map[string]*Lost
}

func newContacts(report func([]Lost)) *contacts {
	if report == nil {
		report = func([]Lost) {}
	}
	return &contacts{report: report, lost: map[string]*Lost{}}
}

// tell reports what is lost now. The lock is held.
func (c *contacts) tell() {
	var all []Lost
	for _, name := range slices.SortedFunc(maps.Keys(c.lost), strings.Compare) {
		all = append(all, *c.lost[name])
	}
	c.report(all)
}

// contact is what is known of one kind. Its methods may be called concurrently.
type contact struct {
	*contacts
	resource string
	heardAt  time.Time
	asked    int // counts requests, so that a late timer does not count for the next one
}

func (c *contacts) of(resource string) *contact { return &contact{contacts: c, resource: resource} }

// heard records that the server answered, or sent an event.
func (c *contact) heard() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heardAt = time.Now()
	if c.lost[c.resource] != nil {
		delete(c.lost, c.resource)
		c.tell()
	}
}

// fail records that an attempt failed.
func (c *contact) fail(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lose(reason, time.Now())
}

// lose records that the kind is lost. The lock is held.
func (c *contact) lose(reason string, since time.Time) {
	l := c.lost[c.resource]
	if l == nil {
		l = &Lost{Resource: c.resource, Since: since, Heard: c.heardAt}
		c.lost[c.resource] = l
	}
	l.Reason, l.NextTry = reason, time.Time{}
	c.tell()
}

// retryIn records how long it is until the next attempt.
func (c *contact) retryIn(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.lost[c.resource]; l != nil {
		l.NextTry = time.Now().Add(d)
		c.tell()
	}
}

// ask records that a request is sent, whose answer should come within answerTime. The
// caller calls ended when it has come, or an error.
func (c *contact) ask() (ended func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	number, began := c.asked, time.Now()
	timer := time.AfterFunc(answerTime, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.asked == number {
			c.lose(unanswered, began)
		}
	})
	return func() {
		timer.Stop()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.asked++
	}
}
