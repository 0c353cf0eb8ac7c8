package bugreport

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"sluice/internal/statusapi"
)

// planted is a part of every secret in these tests.
const planted = "PLANTED"

// services is the number of Services of the daemon, more than a page has.
const services = 2*statusapi.MaxPage + 7

// daemon serves the status API at a socket, with secrets wherever there is text.
func daemon(t *testing.T) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "b") // the name of a test may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	secret := "Get \"https://me:" + planted + "@api/x\": token " + jwt
	mux := http.NewServeMux()
	answer := func(path string, with func(*http.Request) any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(statusapi.VersionHeader, statusapi.Version)
			_ = json.NewEncoder(w).Encode(with(r))
		})
	}
	answer(statusapi.NodePath, func(*http.Request) any {
		return statusapi.Node{Name: "node-1", Mode: "iptables", Sync: statusapi.Sync{Error: secret}}
	})
	answer(statusapi.ProblemsPath, func(*http.Request) any {
		return statusapi.ProblemList{Items: []statusapi.Problem{{Object: "Service ns/token", Reason: secret}}}
	})
	answer(statusapi.ChangesPath, func(*http.Request) any {
		return statusapi.ChangeList{Items: []statusapi.Change{{Number: 1, Detail: secret}}}
	})
	answer(statusapi.TrafficPath, func(*http.Request) any { return statusapi.TrafficList{Items: []statusapi.PortTraffic{}, Off: secret} })
	answer(statusapi.ServicesPath, func(r *http.Request) any {
		from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
		page := statusapi.ServiceList{Total: services}
		for n := from; n < min(from+statusapi.MaxPage, services); n++ {
			page.Items = append(page.Items, statusapi.ServiceSummary{Namespace: "ns", Name: fmt.Sprintf("s-%d", n), Used: 1 - n%10/9})
		}
		if from+statusapi.MaxPage < services {
			page.Continue = strconv.Itoa(from + statusapi.MaxPage)
		}
		return page
	})
	answer(statusapi.ServicesPath+"/ns/{name}", func(r *http.Request) any {
		return statusapi.Service{
			ServiceSummary: statusapi.ServiceSummary{Name: r.PathValue("name")},
			Rows:           []statusapi.Port{{Status: statusapi.Status{Reason: secret}}},
		}
	})
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return filepath.Join(dir, "s")
}

// settingsOf returns sources that all have secrets.
func settingsOf(t *testing.T, socket string) Settings {
	t.Helper()
	metrics := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s host=\"https://me:%s@api\"\n", r.URL.Path, planted)
	}))
	t.Cleanup(metrics.Close)
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, []byte(strings.Repeat("x", maxLog)+"\nunexpected answer: "+pem+"\nthe end\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	process := fmt.Sprintf("proc/%d/", os.Getpid()) // the test is the daemon
	return Settings{
		Client: statusapi.AtSocket(socket), Socket: socket, Metrics: metrics.URL, Log: log, Version: map[string]string{"version": "v1"}, Timeout: time.Minute,
		Host: fstest.MapFS{
			"proc/version":                         {Data: []byte("Linux 6.18")},
			"proc/sys/net/ipv4/ip_forward":         {Data: []byte("1\n")},
			"proc/sys/net/ipv4/tcp_fastopen_key":   {Data: []byte(planted)},
			process + "cmdline":                    {Data: []byte("sluice\x00--master=https://me:" + planted + "@api\x00-v=2\x00")},
			process + "environ":                    {Data: []byte("SECRET=" + planted)},
			"var/lib/kube-proxy/kubeconfig.conf":   {Data: []byte("token: " + planted)},
			"var/run/secrets/kubernetes.io/sa/key": {Data: []byte(planted)},
		},
		Rules: func(_ context.Context, mode string) ([]byte, error) { return []byte("rules of " + mode), nil },
		Run: func(_ context.Context, program string, _ ...string) ([]byte, error) {
			if program == "ip6tables-save" {
				return nil, errors.New("no such program; tried https://me:" + planted + "@api")
			}
			return []byte("*filter\n:INPUT ACCEPT\n-A INPUT -m comment --comment " + planted + " -j DROP\nCOMMIT\n" +
				"*nat\n:KUBE-SERVICES -\n-A PREROUTING -j KUBE-SERVICES\n-A PREROUTING -j THEIRS\nCOMMIT\n"), nil
		},
	}
}

// unpack returns the files of a report.
func unpack(t *testing.T, c *Contents) map[string]string {
	t.Helper()
	var packed bytes.Buffer
	if err := c.Write(&packed, "folder", time.Now()); err != nil {
		t.Fatal(err)
	}
	compressed, err := gzip.NewReader(&packed)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for archive := tar.NewReader(compressed); ; {
		head, err := archive.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimPrefix(head.Name, "folder/")] = string(text)
	}
}

// TestReport checks that a report has everything, and no secret.
func TestReport(t *testing.T) {
	c, err := Gather(t.Context(), settingsOf(t, daemon(t)))
	if err != nil {
		t.Fatal(err)
	}
	files := unpack(t, c)
	for name, text := range files {
		if i := strings.Index(text, planted); i >= 0 {
			t.Errorf("%s leaks a secret: %.60q", name, text[max(0, i-30):])
		}
	}
	for name, want := range map[string]string{
		"README.txt": "Could not be read:\n  ip6tables.txt", "node.json": `"node-1"`, "problems.json": "Service ns/token",
		"changes.json": `"number": 1`, "services.json": fmt.Sprintf(`"s-%d"`, services-1), "troubled.json": `"s-9"`, "traffic.json": "[]",
		"metrics.txt": "/metrics", "configuration.json": "/configz", "kernel.txt": "Linux 6.18", "sysctls.txt": "net/ipv4/ip_forward = 1\n",
		"process.txt": "sluice --master=https://REDACTED@api -v=2", "version.json": `"v1"`, "log.txt": "the end\n",
		"rules.txt": "rules of iptables", "iptables.txt": "*nat\n:KUBE-SERVICES -\n-A PREROUTING -j KUBE-SERVICES\n",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s lacks %q: %.200q", name, want, files[name])
		}
		delete(files, name)
	}
	for name := range files {
		t.Errorf("unexpected %s", name)
	}
}

// TestPages checks that every item of all pages is reported once.
func TestPages(t *testing.T) {
	text, err := list(t.Context(), statusapi.AtSocket(daemon(t)), statusapi.ServicesPath)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), `"namespace"`); n != services {
		t.Errorf("%d Services, want %d", n, services)
	}
}

// TestHostileServer checks that a process that took the port of the metrics server can
// neither send control characters to the terminal nor redirect us to another address.
func TestHostileServer(t *testing.T) {
	s := settingsOf(t, daemon(t))
	elsewhere := s.Metrics
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() {
		for _, answer := range []string{"500 \x1b]0;pwned\x07", "302 Found\r\nLocation: " + elsewhere + "/secret"} {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = http.ReadRequest(bufio.NewReader(conn))
			_, _ = io.WriteString(conn, "HTTP/1.1 "+answer+"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			_ = conn.Close()
		}
	}()
	s.Metrics = "http://" + l.Addr().String()
	c, err := Gather(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	files := unpack(t, c)
	index := files["README.txt"]
	if strings.ContainsAny(index, "\x1b\x07") || !strings.Contains(index, "500 \ufffd]0;pwned\ufffd") || !strings.Contains(index, "302 Found") {
		t.Errorf("the index is %q", index)
	}
	if text, there := files["configuration.json"]; there {
		t.Errorf("was sent to %q", text)
	}
}

// TestWithoutDaemon checks the report if no daemon answers, and the error if there are no
// rules either.
func TestWithoutDaemon(t *testing.T) {
	s := settingsOf(t, "/none/s")
	s.Metrics = "http://127.0.0.1:1"
	c, err := Gather(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	files := unpack(t, c)
	if !strings.Contains(files["iptables.txt"], "KUBE-SERVICES") || !strings.Contains(files["README.txt"], "no daemon answers at /none/s") {
		t.Errorf("the report is %v", files)
	}
	s.Run = func(context.Context, string, ...string) ([]byte, error) { return nil, nil }
	if c, err := Gather(t.Context(), s); !errors.Is(err, errNothing) {
		t.Errorf("error %v, report %v; want an error", err, c)
	}
}

// TestInTime checks that a report has what could be read, and says what could not, if the
// daemon, the metrics server and a program of the host never answer.
func TestInTime(t *testing.T) {
	silent, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	s := settingsOf(t, silent.Addr().String())
	never := make(chan struct{})
	defer close(never)
	metrics := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer metrics.Close()
	s.Metrics, s.Timeout = metrics.URL, 100*time.Millisecond
	run := s.Run
	s.Run = func(ctx context.Context, program string, args ...string) ([]byte, error) {
		if program == "iptables-save" {
			<-never // as a program that waits for the kernel
		}
		return run(ctx, program, args...)
	}
	began := time.Now()
	if c, err := Gather(t.Context(), s); !errors.Is(err, errNothing) {
		t.Errorf("error %v, report %v; want an error: nothing was read of the proxy", err, c)
	}
	if took := time.Since(began); took > s.Timeout+partGrace+5*time.Second {
		t.Errorf("it took %v, want %v", took, s.Timeout+partGrace)
	}
	s.Run = func(ctx context.Context, program string, args ...string) ([]byte, error) {
		if program == "iptables-save" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return run(ctx, program, args...)
	}
	c, err := Gather(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	files := unpack(t, c)
	for _, want := range []string{"does not answer: process " + strconv.Itoa(os.Getpid()), "metrics.txt (all metrics): ", "iptables.txt (our rules"} {
		if !strings.Contains(files["README.txt"], want) {
			t.Errorf("the index lacks %q:\n%s", want, files["README.txt"])
		}
	}
	if files["kernel.txt"] == "" || files["process.txt"] == "" {
		t.Errorf("the report has only %v", files)
	}
}
