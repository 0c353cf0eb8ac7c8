package apiserver

import (
	"bufio"
	"io"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// watch streams what happens to objects of a kind, until the client goes.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, q request) error {
	which, err := readSelector(q.namespace, r)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	c, items, next, err := s.begin(r, q, which)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	out := s.newStream(w, r)
	out.first(items)
	out.flush()
	for out.err == nil {
		s.store.mu.Lock()
		events, changed := c.events[next:], c.changed
		s.store.mu.Unlock()
		for _, e := range events {
			if what, o := which.seen(e); o != nil {
				out.send(what, o)
			}
		}
		next += len(events)
		out.flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return nil
		}
	}
	return nil
}

// begin returns what a client begins with: everything there is, and the number of
// the first event that it has not seen.
func (s *Server) begin(r *http.Request, q request, which selector) (c *collection, items []runtime.Object, next int, err error) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	c = s.store.of(q.path)
	query := r.URL.Query()
	if query.Get("sendInitialEvents") == "true" {
		mark, err := s.store.bookmark(q.kind)
		return c, append(which.list(c), mark), len(c.events), err
	}
	next = len(c.events)
	if version := query.Get("resourceVersion"); version != "" && version != "0" {
		after, err := strconv.Atoi(version)
		return c, nil, c.since(after), err
	}
	return c, nil, next, nil
}

// stream is events on their way to a client, and the first error.
type stream struct {
	server *Server
	form   runtime.SerializerInfo
	events runtime.Encoder
	err    error
	frames io.Writer // into pieces
	pieces *bufio.Writer
	to     http.Flusher
}

const pieceBytes = 64 << 10

func (s *Server) newStream(w http.ResponseWriter, r *http.Request) *stream {
	f := form(r)
	media := f.MediaType
	if media == runtime.ContentTypeProtobuf {
		media += ";stream=watch"
	}
	w.Header().Set("Content-Type", media)
	pieces := bufio.NewWriterSize(w, pieceBytes)
	return &stream{
		server: s, form: f, events: f.StreamSerializer.Serializer,
		frames: f.StreamSerializer.NewFrameWriter(pieces), pieces: pieces, to: w.(http.Flusher),
	}
}

// flush sends what waits.
func (s *stream) flush() {
	if s.err == nil {
		s.err = s.pieces.Flush()
	}
	s.to.Flush()
}

// first sends all objects there are; the last one is a bookmark that says so.
func (s *stream) first(items []runtime.Object) {
	for i, o := range items {
		what := watch.Added
		if i == len(items)-1 {
			what = watch.Bookmark
		}
		s.send(what, o)
	}
}

func (s *stream) send(what watch.EventType, o runtime.Object) {
	if s.err != nil {
		return
	}
	e := &metav1.WatchEvent{Type: string(what)}
	if raw, ok := s.server.encoded.Load(shape{s.form.MediaType, o}); ok {
		e.Object.Raw = raw.([]byte)
	} else if e.Object.Raw, s.err = runtime.Encode(s.form.Serializer, o); s.err != nil {
		return
	}
	var text []byte
	if text, s.err = runtime.Encode(s.events, e); s.err == nil {
		_, s.err = s.frames.Write(text)
	}
}
