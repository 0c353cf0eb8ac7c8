package podexec

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"sync/atomic"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"sluice/internal/conformance/lab"
	"sluice/test/cluster/pki"
)

// Port is where a kubelet listens.
const Port = 10250

// Settings says where to listen and what a command of a pod is.
type Settings struct {
	Host    *lab.Host
	Addr    netip.Addr
	Pair    pki.Pair
	Command func(pod string, args []string) (*exec.Cmd, error)
	Running *atomic.Int32 // how many commands run
}

// Server runs commands until it is closed.
type Server struct {
	settings Settings
	server   *http.Server
}

// Start listens.
func Start(s Settings) (*Server, error) {
	cert, err := tls.X509KeyPair(s.Pair.Cert, s.Pair.Key)
	if err != nil {
		return nil, fmt.Errorf("read the kubelet's certificate: %w", err)
	}
	var l net.Listener
	err = s.Host.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(s.Addr, Port).String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start a kubelet: %w", err)
	}
	k := &Server{settings: s}
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", k.exec)
	k.server = &http.Server{Handler: mux}
	// SPDY is taken over from HTTP/1.1.
	secure := tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}})
	go func() { _ = k.server.Serve(secure) }() // it ends with Close
	return k, nil
}

// Close ends the kubelet.
func (k *Server) Close() error { return k.server.Close() }

func (k *Server) exec(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeExec(w, r, k, r.PathValue("pod"), "", r.PathValue("container"), r.URL.Query()["command"], options,
		time.Hour, remotecommand.DefaultStreamCreationTimeout, remotecommand.SupportedStreamingProtocols)
}

// ExecInContainer runs a command of a pod.
func (k *Server) ExecInContainer(
	_ context.Context, pod, _, _ string, args []string, in io.Reader, out, stderr io.WriteCloser, _ bool,
	_ <-chan remotecommand.TerminalSize, _ time.Duration,
) error {
	cmd, err := k.settings.Command(pod, args)
	if err != nil {
		return err
	}
	// A container's process has pipes, and outlives neither its input nor what waits for it.
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = out, stderr
	if err := k.settings.Host.Start(cmd); err != nil {
		return err
	}
	k.settings.Running.Add(1)
	defer k.settings.Running.Add(-1)
	go func() {
		_, _ = io.Copy(stdin, in) // until the client closes it, or is gone
		_ = stdin.Close()
	}()
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return utilexec.CodeExitError{Err: err, Code: exit.ExitCode()}
	}
	return err
}
