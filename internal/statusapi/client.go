package statusapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// DefaultSocket is the path of the daemon's unix socket if none is configured.
const DefaultSocket = "/run/sluice/status.sock"

// VersionHeader is the header of every response of a daemon that lists the API
// versions it supports, separated by commas.
const VersionHeader = "Sluice-Api-Versions"

// DialStdio is the subcommand of sluice that connects its standard input and
// output to the daemon's socket. Connected is the line that it writes to its
// standard error once it has connected.
const (
	DialStdio = "dial-stdio"
	Connected = "connected"
)

// maxResponse bounds the bytes that a client reads of one response. A page of a
// list is far smaller.
const maxResponse = 16 << 20

// Client sends requests to one daemon. It is safe for concurrent use.
type Client struct {
	http   *http.Client
	base   string // the URL that paths are appended to
	name   string // identifies the daemon in errors
	socket string // its unix socket; empty if it is reached otherwise
}

// AtSocket returns a client for the daemon at a unix socket.
func AtSocket(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return &Client{
		http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableCompression: true}, Timeout: 30 * time.Second},
		base: "http://localhost", name: path, socket: path,
	}
}

// DialSocket connects to the daemon at a unix socket. Its error says what to do
// if no daemon can be reached there.
func DialSocket(ctx context.Context, path string) (*net.UnixConn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, (&Client{name: path, socket: path}).unreachable(err)
	}
	return conn.(*net.UnixConn), nil
}

// At returns a client that reaches a daemon through an HTTP client, for example
// one whose connections go through the API server. Paths are appended to base, and
// errors call the daemon by name.
func At(c *http.Client, base, name string) *Client {
	return &Client{http: c, base: strings.TrimSuffix(base, "/"), name: name}
}

// nodeTimeout is how long the daemon at a socket may take to answer about its node,
// which takes it microseconds: every command asks that first.
const nodeTimeout = 1800 * time.Millisecond

// Get requests a path and decodes the response into to. It returns a
// [ResponseError] if the daemon refuses the request. At a socket, it adds to the
// response about the node what only the client can doubt.
func (c *Client) Get(ctx context.Context, path string, query url.Values, to any) error {
	if c.socket == "" || path != NodePath {
		return c.get(ctx, path, query, to)
	}
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	err := c.get(ctx, path, query, to)
	if n, ok := to.(*Node); ok && err == nil {
		n.Doubts = append(n.Doubts, c.doubts(n)...)
		n.Verdict = n.Judge()
	}
	return err
}

// OtherNamespace is the kind of the doubt that the daemon which answers is in another
// network namespace than the client.
const OtherNamespace = "OtherNamespace"

// doubts returns what the client doubts of the daemon that answered.
func (c *Client) doubts(n *Node) []Doubt {
	pid, err := Peer(c.socket)
	if err != nil || !elsewhere(pid) {
		return nil
	}
	return []Doubt{{
		Kind: OtherNamespace, Severity: DoubtWarning, Since: n.Started,
		Reason: fmt.Sprintf("the daemon that answers, process %d, is in another network namespace than this command, and all of this is about that one", pid),
		Next:   fmt.Sprintf("to ask about this one, name the socket of its daemon; nsenter -t %d -n enters the other", pid),
	}}
}

func (c *Client) get(ctx context.Context, path string, query url.Values, to any) error {
	u := c.base + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(err)
	}
	defer func() { _ = resp.Body.Close() }()
	limit, consume := responseLimit(ctx)
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	consume(len(body))
	switch {
	case err != nil:
		return fmt.Errorf("read the response of %s: %w", c.name, err)
	case int64(len(body)) > limit:
		return fmt.Errorf("%s: the response is longer than a sluice daemon's can be", c.name)
	}
	return c.decode(resp, body, to)
}

func (c *Client) decode(resp *http.Response, body []byte, to any) error {
	versions := resp.Header.Get(VersionHeader)
	switch {
	case versions == "":
		return fmt.Errorf("%s: the server there is not a sluice daemon (HTTP %d)", c.name, resp.StatusCode)
	case !slices.ContainsFunc(strings.Split(versions, ","), func(v string) bool { return strings.TrimSpace(v) == Version }):
		return fmt.Errorf("%s: the daemon supports version %s of the status API, this program version %s: use the program of the daemon's release",
			c.name, versions, Version)
	case resp.StatusCode != http.StatusOK:
		var e Error
		if json.Unmarshal(body, &e) != nil || e.Message == "" {
			e.Message = http.StatusText(resp.StatusCode)
		}
		return &ResponseError{Code: resp.StatusCode, Message: e.Message}
	}
	if err := json.Unmarshal(body, to); err != nil {
		return fmt.Errorf("%s: decode the response as version %s of the status API: %w", c.name, Version, err)
	}
	return nil
}

// ResponseError is a response of the daemon other than 200 OK. On the server's
// side, it is the error that the daemon sends as such a response.
type ResponseError struct {
	Code    int // HTTP status code
	Message string
}

func (e *ResponseError) Error() string { return e.Message }

// unreachable returns an error for a daemon that no request could be sent to,
// with what to do about it.
func (c *Client) unreachable(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("no daemon answers at %s: is sluice running on this node? (--socket names another socket)", c.name)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, wsaRefused):
		return fmt.Errorf("no daemon answers at %s: the socket is left over from a daemon that has stopped or was killed", c.name)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, wsaAccess):
		return fmt.Errorf("no permission to connect to the daemon at %s: %s", c.name, permissionHint(runtime.GOOS))
	case c.socket != "" && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, syscall.EAGAIN)): // EAGAIN: too many already wait
		return fmt.Errorf("the daemon at %s does not answer: %s; the rules stay in force as they are", c.name, c.silence())
	}
	return fmt.Errorf("connect to the daemon at %s: %w", c.name, err)
}

// silence says why the daemon may not answer.
func (c *Client) silence() string {
	switch pid, err := Peer(c.socket); {
	case err != nil:
		return "is it stopped, or stuck?"
	case stopped(pid):
		return fmt.Sprintf("process %d is stopped, kill -CONT %d continues it", pid, pid)
	default:
		return fmt.Sprintf("process %d is stuck, or has no CPU time; if that lasts, restart it", pid)
	}
}

// Winsock error codes. On Windows, syscall.EACCES and syscall.ECONNREFUSED are
// other, invented numbers, which sockets never return.
const (
	wsaAccess  = syscall.Errno(10013)
	wsaRefused = syscall.Errno(10061)
)

// permissionHint says who may connect to a daemon's socket.
func permissionHint(goos string) string {
	if goos == "windows" {
		return "only administrators and the system may, try a terminal that runs as administrator"
	}
	return "only root may, try sudo"
}

// CloseIdle closes connections that are not in use.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }
