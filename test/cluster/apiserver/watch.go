package apiserver

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
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
		server: s, form: f,
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
	if frame, ok := s.server.frames.Load(o); ok && what == watch.Added && s.form.MediaType == runtime.ContentTypeProtobuf {
		_, s.err = s.pieces.Write(frame.([]byte))
		return
	}
	s.err = writeFrame(s.frames, s.form, what, o)
}

// writeFrame encodes an event and writes it with its length.
func writeFrame(to io.Writer, form runtime.SerializerInfo, what watch.EventType, o runtime.Object) error {
	raw, err := runtime.Encode(form.Serializer, o)
	if err != nil {
		return err
	}
	text, err := runtime.Encode(form.StreamSerializer.Serializer, &metav1.WatchEvent{Type: string(what), Object: runtime.RawExtension{Raw: raw}})
	if err != nil {
		return err
	}
	_, err = to.Write(text)
	return err
}

// addedFrame returns what a binary watch sends for an object that is there.
func addedFrame(o runtime.Object) ([]byte, error) {
	form, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	var frame bytes.Buffer
	err := writeFrame(form.StreamSerializer.NewFrameWriter(&frame), form, watch.Added, o)
	return frame.Bytes(), err
}
