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

// Contacts records when the API server last sent something about each resource: a list,
// the beginning of a watch, an event or a bookmark, of which it sends one a minute; and
// which resources it is not heard from about. Its methods may be called concurrently. The
// zero value is empty.
type Contacts struct {
	// Report is called with the resources that the server is not heard from about, sorted,
	// whenever they change. It must not block or use the Contacts. It may be nil.
	Report func([]Lost)

	mu   sync.Mutex
	last map[string]time.Time
	lost map[string]*Lost
}

// Lost is a resource that the API server is not heard from about, so that changes of its
// objects are not known.
type Lost struct {
	Resource string // for example services
	Reason   string
	Since    time.Time // when the first attempt failed
	Heard    time.Time // when the server was last heard from about it; zero: never
	NextTry  time.Time // when it is asked again; zero: not known
}

// Last returns the time of the last contact by resource. Before the first contact it is
// the time when the source began to ask.
func (c *Contacts) Last() map[string]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.last)
}

// of returns the contact about a resource. From now on, silence counts.
func (c *Contacts) of(resource string) *contact {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		c.last, c.lost = map[string]time.Time{}, map[string]*Lost{}
	}
	c.last[resource] = time.Now()
	return &contact{Contacts: c, resource: resource}
}

// tell reports what is lost now. The lock is held.
func (c *Contacts) tell() {
	if c.Report == nil {
		return
	}
	var all []Lost
	for _, name := range slices.SortedFunc(maps.Keys(c.lost), strings.Compare) {
		all = append(all, *c.lost[name])
	}
	c.Report(all)
}

// contact is the contact about one resource. Its methods may be called concurrently.
type contact struct {
	*Contacts
	resource string
	answered bool // the server was heard from
	asked    int  // counts requests, so that a late timer does not count for the next one
}

// heard records that the server answered, or sent an event or a bookmark.
func (c *contact) heard() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last[c.resource], c.answered = time.Now(), true
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

// lose records that the resource is lost. The lock is held.
func (c *contact) lose(reason string, since time.Time) {
	l := c.lost[c.resource]
	if l == nil {
		l = &Lost{Resource: c.resource, Since: since}
		c.lost[c.resource] = l
		if c.answered {
			l.Heard = c.last[c.resource]
		}
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
