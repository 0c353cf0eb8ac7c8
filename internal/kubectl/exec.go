package kubectl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"

	"sluice/internal/apiclient"
	"sluice/internal/statusapi"
)

const (
	// program is where the image has it.
	program = "/usr/local/bin/sluice"

	// connections is how many a node has at most: the page may ask for more while
	// a question takes long.
	connections = 4
)

// daemon returns what asks the daemon in a pod.
func (c *cluster) daemon(node string, pod *v1.Pod) daemon {
	d := daemon{node: node, timeout: c.timeout}
	if pod == nil {
		d.err = fmt.Errorf("no pod of sluice is there (looked for in namespace %s)", c.namespace)
		return d
	}
	if d.err = notRunning(pod); d.err != nil {
		return d
	}
	client := &http.Client{Transport: &http.Transport{
		MaxConnsPerHost: connections, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, c.timeout)
			defer cancel()
			return c.dial(ctx, pod)
		},
	}}
	d.client = statusapi.At(client, "http://localhost", "node "+node)
	return d
}

// dial connects with the daemon in a pod.
func (c *cluster) dial(ctx context.Context, pod *v1.Pod) (net.Conn, error) {
	e, err := c.executor(pod)
	if err != nil {
		return nil, err
	}
	conn, said, err := connect(ctx, e)
	if err != nil {
		return nil, c.unreachable(pod, said, err)
	}
	return conn, nil
}

// executor runs sluice dial-stdio in a pod: by websocket, and where the API
// server or a proxy before it does not know that, by SPDY.
func (c *cluster) executor(pod *v1.Pod) (remotecommand.Executor, error) {
	query := url.Values{
		"container": {container(pod)}, "command": {program, statusapi.DialStdio, "--socket=" + c.socket},
		"stdin": {"true"}, "stdout": {"true"}, "stderr": {"true"},
	}
	u := c.api.Get().AbsPath(apiclient.Path("")).Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("exec").URL()
	u.RawQuery = query.Encode()
	ws, err := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, u.String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(c.config, http.MethodPost, u)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(ws, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}

// execError says why a daemon cannot be reached, and what to do.
type execError struct{ text string }

func (e *execError) Error() string { return e.text }

// tooLate says that there was no answer for too long.
func tooLate(timeout time.Duration) error {
	return &execError{fmt.Sprintf("no answer within %v (--timeout)", timeout)}
}

// unreachable explains an error of dialling. Much of what went wrong elsewhere
// comes as text only.
func (c *cluster) unreachable(pod *v1.Pod, said string, err error) error {
	text := firstLine(err.Error())
	if strings.Contains(text, "forbidden") {
		return &execError{"no right to run a command in the daemon's pod: that takes verb create on pods/exec in namespace " + pod.Namespace}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return tooLate(c.timeout)
	}
	exit, ended := errors.AsType[exec.CodeExitError](err)
	switch {
	case ended && strings.Contains(said, statusapi.DialStdio):
		text = "its sluice is older than this program and cannot be asked from elsewhere: update it"
	case ended && said != "":
		text = strings.TrimPrefix(firstLine(said), "Error: ")
	case ended:
		text = fmt.Sprintf("%s %s ended with exit code %d", program, statusapi.DialStdio, exit.Code)
	case strings.Contains(text, "no such file") || strings.Contains(text, "executable file not found"):
		text = fmt.Sprintf("there is no %s in it: does it run sluice?", program)
	}
	return &execError{fmt.Sprintf("pod %s/%s: %s", pod.Namespace, pod.Name, text)}
}
