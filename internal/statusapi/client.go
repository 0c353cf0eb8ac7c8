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
	"strings"
	"syscall"
	"time"
)

// DefaultSocket is where the daemon answers unless it is told otherwise.
const DefaultSocket = "/run/sluice/status.sock"

// VersionHeader is in every answer of a daemon, and has the versions it speaks.
const VersionHeader = "Sluice-Api-Versions"

// DialStdio is the subcommand of sluice that connects its standard input and
// output with the daemon's socket, and Connected the line that it writes to its
// standard error when it has.
const (
	DialStdio = "dial-stdio"
	Connected = "connected"
)

// maxAnswer bounds what a client reads. A page is far smaller.
const maxAnswer = 16 << 20

// Client asks a daemon.
type Client struct {
	http *http.Client
	base string // of every URL
	name string // what errors call the daemon
}

// AtSocket returns a client for a unix socket.
func AtSocket(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return &Client{
		http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableCompression: true}, Timeout: 30 * time.Second},
		base: "http://localhost", name: path,
	}
}

// DialSocket connects with a daemon at a unix socket.
func DialSocket(ctx context.Context, path string) (*net.UnixConn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, (&Client{name: path}).unreachable(err)
	}
	return conn.(*net.UnixConn), nil
}

// At returns a client for a daemon behind an HTTP client, such as one that
// passes the API server, with what errors call it.
func At(c *http.Client, base, name string) *Client {
	return &Client{http: c, base: strings.TrimSuffix(base, "/"), name: name}
}

// Get asks for a path and puts the answer into to.
func (c *Client) Get(ctx context.Context, path string, query url.Values, to any) error {
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
	most, take := allowed(ctx)
	body, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	take(len(body))
	switch {
	case err != nil:
		return fmt.Errorf("read the answer of %s: %w", c.name, err)
	case int64(len(body)) > most:
		return fmt.Errorf("%s: the answer is longer than any daemon's", c.name)
	}
	return c.decode(resp, body, to)
}

func (c *Client) decode(resp *http.Response, body []byte, to any) error {
	versions := resp.Header.Get(VersionHeader)
	switch {
	case versions == "":
		return fmt.Errorf("%s: what answers there is no sluice daemon (HTTP %d)", c.name, resp.StatusCode)
	case !contains(versions, Version):
		return fmt.Errorf("%s: the daemon speaks version %s of the status API, this program %s: use the program of the daemon's release",
			c.name, versions, Version)
	case resp.StatusCode != http.StatusOK:
		var e Error
		if json.Unmarshal(body, &e) != nil || e.Message == "" {
			e.Message = http.StatusText(resp.StatusCode)
		}
		return &ResponseError{Code: resp.StatusCode, Message: e.Message}
	}
	if err := json.Unmarshal(body, to); err != nil {
		return fmt.Errorf("%s: the answer is not what version %s has: %w", c.name, Version, err)
	}
	return nil
}

func contains(versions, v string) bool {
	for _, have := range strings.Split(versions, ",") {
		if strings.TrimSpace(have) == v {
			return true
		}
	}
	return false
}

// ResponseError is what the daemon said instead of an answer.
type ResponseError struct {
	Code    int // of HTTP
	Message string
}

func (e *ResponseError) Error() string { return e.Message }

// unreachable says what to do about a daemon that cannot be asked.
func (c *Client) unreachable(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("no daemon answers at %s: is sluice running on this node? (--socket names another socket)", c.name)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, wsaRefused):
		return fmt.Errorf("no daemon answers at %s: it was there, and has stopped or was killed", c.name)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, wsaAccess):
		return fmt.Errorf("no permission to ask the daemon at %s: %s", c.name, whoMay(runtime.GOOS))
	}
	return fmt.Errorf("ask the daemon at %s: %w", c.name, err)
}

// What sockets of Windows answer, which package syscall has other numbers for.
const (
	wsaAccess  = syscall.Errno(10013)
	wsaRefused = syscall.Errno(10061)
)

// whoMay says who may ask at a socket.
func whoMay(system string) string {
	if system == "windows" {
		return "only administrators and the system may, try a terminal that runs as administrator"
	}
	return "only root may, try sudo"
}

// CloseIdle closes connections that wait for another question.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }
