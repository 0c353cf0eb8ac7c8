package wine

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"

	"sluice/internal/kernel/hns"
)

// server answers the calls that stub/hns.c forwards, in the protocol described there.
type server struct {
	service  hns.Interface
	networks []string // their names

	mu         sync.Mutex
	calls      map[string]int
	handles    map[uint32]string // IDs of objects
	lastHandle uint32
}

// request is a call of a function.
type request struct {
	function string
	handle   uint32
	id       string
	text     [3]string
}

// answer is what a function returns.
type answer struct {
	code   uint32 // HRESULT; 0 means success
	handle uint32
	out    string // the requested object; empty means none
	result string // the error record; empty means none
}

func newServer(service hns.Interface, networks []string) *server {
	return &server{service: service, networks: networks, calls: map[string]int{}, handles: map[uint32]string{}}
}

func (s *server) reset() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = map[string]int{}
	return calls
}

// serve answers until the listener is closed. Each DLL has one connection.
func (s *server) serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = c.Close() }() // everything is written
			for r := bufio.NewReader(c); ; {
				q, err := readRequest(r)
				if err == nil {
					_, err = c.Write(s.answer(q).bytes())
				}
				if err != nil {
					return // the program has ended
				}
			}
		}()
	}
}

func (s *server) answer(q request) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[q.function]++
	a, err := s.do(context.Background(), q)
	if err != nil {
		return failure(q.function, err)
	}
	return a
}

const absent = ^uint32(0)

func readText(r io.Reader) (string, error) {
	var size uint32
	if err := binary.Read(r, binary.LittleEndian, &size); err != nil || size == absent {
		return "", err
	}
	if size > 1<<24 {
		return "", errors.New("read a text of more than 16 MiB")
	}
	text := make([]byte, size)
	_, err := io.ReadFull(r, text)
	return string(text), err
}

func readRequest(r io.Reader) (q request, err error) {
	var handle string
	for _, to := range []*string{&q.function, &handle, &q.id, &q.text[0], &q.text[1], &q.text[2]} {
		if *to, err = readText(r); err != nil {
			return q, err
		}
	}
	n, err := strconv.ParseUint(handle, 10, 32)
	q.handle = uint32(n)
	return q, err
}

func (a answer) bytes() []byte {
	b := binary.LittleEndian.AppendUint32(nil, a.code)
	b = binary.LittleEndian.AppendUint32(b, a.handle)
	for _, text := range []string{a.out, a.result} {
		if text == "" {
			b = binary.LittleEndian.AppendUint32(b, absent)
			continue
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
		b = append(b, text...)
	}
	return b
}
