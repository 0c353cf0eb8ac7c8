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
	// program is the path of sluice in its image.
	program = "/usr/local/bin/sluice"

	// maxConnections bounds the connections to a node, each of which is a process in
	// the pod. The page may send requests while others are in progress.
	maxConnections = 4
)

// daemon returns the daemon in a pod, which may be nil.
func (c *cluster) daemon(node string, pod *v1.Pod) daemon {
	d := daemon{node: node, timeout: c.timeout}
	if pod == nil {
		d.err = fmt.Errorf("no pod of sluice on this node (searched in namespace %s)", c.namespace)
		return d
	}
	if d.err = notRunning(pod); d.err != nil {
		return d
	}
	client := &http.Client{Transport: &http.Transport{
		MaxConnsPerHost: maxConnections, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, c.timeout)
			defer cancel()
			return c.dial(ctx, pod)
		},
	}}
	d.client = statusapi.At(client, "http://localhost", "node "+node)
	return d
}

// dial connects to the daemon in a pod.
func (c *cluster) dial(ctx context.Context, pod *v1.Pod) (net.Conn, error) {
	e, err := c.executor(pod)
	if err != nil {
		return nil, err
	}
	conn, output, err := connect(ctx, e)
	if err != nil {
		return nil, c.unreachable(pod, output, err)
	}
	return conn, nil
}

// executor returns an executor that runs sluice dial-stdio in a pod. It uses a
// websocket or, if the API server or a proxy before it does not support that, SPDY.
func (c *cluster) executor(pod *v1.Pod) (remotecommand.Executor, error) {
	query := url.Values{
		"container": {containerName(pod)}, "command": {program, statusapi.DialStdio, "--socket=" + c.socket},
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

// execError is an error of running sluice dial-stdio in a pod, with what to do.
type execError struct{ text string }

func (e *execError) Error() string { return e.text }

func timeoutError(timeout time.Duration) error {
	return &execError{fmt.Sprintf("no answer within %v (--timeout)", timeout)}
}

// unreachable returns the error for a failed dial, given what the process wrote to its
// standard error. Many errors of the API server and the kubelet can be recognized by
// their text only.
func (c *cluster) unreachable(pod *v1.Pod, output string, err error) error {
	text := firstLine(err.Error())
	if strings.Contains(text, "forbidden") {
		return &execError{"no permission to run a command in the daemon's pod: verb create on pods/exec in namespace " + pod.Namespace + " is required"}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return timeoutError(c.timeout)
	}
	exit, ended := errors.AsType[exec.CodeExitError](err)
	switch {
	case ended && strings.Contains(output, statusapi.DialStdio):
		text = "its sluice is too old to be asked from elsewhere: update it"
	case ended && output != "":
		text = strings.TrimPrefix(firstLine(output), "Error: ")
	case ended:
		text = fmt.Sprintf("%s %s ended with exit code %d", program, statusapi.DialStdio, exit.Code)
	case strings.Contains(text, "no such file") || strings.Contains(text, "executable file not found"):
		text = fmt.Sprintf("it has no %s: does it run sluice?", program)
	}
	return &execError{fmt.Sprintf("pod %s/%s: %s", pod.Namespace, pod.Name, text)}
}
