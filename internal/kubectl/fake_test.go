package kubectl

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"sluice/internal/statusapi"
)

// streams are the standard streams of a process in a pod.
type streams struct {
	stdin          io.Reader
	stdout, stderr io.Writer
}

// process is a program that runs in a pod. It returns its exit code, or why it could not
// be run.
type process func(args []string, s streams) (code int, failure string)

// apiServer is an API server with nodes, and pods in which processes can be run.
type apiServer struct {
	t         *testing.T
	nodes     []string
	mu        sync.Mutex
	pods      []v1.Pod
	processes map[string]process // by pod
	spdyOnly  bool               // something on the way does not let websockets through
	forbidden string             // a resource that nobody may use
	lists     int                // how often pods were listed
	running   atomic.Int32       // processes
}

// kubeconfig starts the API server and returns the path of a kubeconfig for it.
func (a *apiServer) kubeconfig() string {
	a.t.Helper()
	server := httptest.NewServer(a)
	a.t.Cleanup(server.Close)
	c := clientcmdapi.NewConfig()
	c.Clusters["fake"] = &clientcmdapi.Cluster{Server: server.URL}
	c.Contexts["fake"] = &clientcmdapi.Context{Cluster: "fake", Namespace: "shop"}
	c.CurrentContext = "fake"
	file := filepath.Join(a.t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*c, file); err != nil {
		a.t.Fatal(err)
	}
	return file
}

// add adds a pod that runs on a node.
func (a *apiServer) add(node, name string, p process, changes ...func(*v1.Pod)) {
	pod := v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: map[string]string{"app.kubernetes.io/name": "sluice"}},
		Spec:       v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "sluice"}}},
		Status:     v1.PodStatus{Phase: v1.PodRunning},
	}
	for _, change := range changes {
		change(&pod)
	}
	a.pods = append(a.pods, pod)
	a.processes[name] = p
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const pods = "/api/v1/namespaces/kube-system/pods"
	name, exec := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, pods+"/"), "/exec")
	resource := map[bool]string{true: "pods/exec", false: r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]}[exec]
	switch node, one := strings.CutPrefix(r.URL.Path, "/api/v1/nodes/"); {
	case resource == a.forbidden:
		a.send(w, http.StatusForbidden, metav1.Status{Status: "Failure", Reason: "Forbidden", Code: 403, Message: resource + " is forbidden: no"})
	case exec:
		a.exec(w, r, name)
	case r.URL.Path == pods:
		a.lists++
		a.send(w, http.StatusOK, a.podPage(r))
	case one && !slices.Contains(a.nodes, node):
		a.send(w, http.StatusNotFound, metav1.Status{Status: "Failure", Reason: "NotFound", Code: 404})
	case one:
		a.send(w, http.StatusOK, v1.Node{})
	case resource == "services":
		a.send(w, http.StatusOK, v1.ServiceList{Items: []v1.Service{
			{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"}}, {ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "cart"}},
		}})
	default:
		list := v1.NodeList{}
		for _, n := range a.nodes {
			list.Items = append(list.Items, v1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}})
		}
		a.send(w, http.StatusOK, list)
	}
}

// podPage returns a page of the requested pods. A page has two.
func (a *apiServer) podPage(r *http.Request) v1.PodList {
	query := r.URL.Query()
	selector, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		a.t.Error(err)
	}
	node, onNode := strings.CutPrefix(query.Get("fieldSelector"), "spec.nodeName=")
	var all []v1.Pod
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.pods {
		if selector.Matches(labels.Set(p.Labels)) && (!onNode || p.Spec.NodeName == node) {
			all = append(all, p)
		}
	}
	from, _ := strconv.Atoi(query.Get("continue"))
	list := v1.PodList{Items: all[from:min(from+2, len(all))]}
	if from+2 < len(all) {
		list.Continue = strconv.Itoa(from + 2)
	}
	return list
}

func (a *apiServer) send(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(object); err != nil {
		a.t.Error(err)
	}
}

// exec runs a process in a pod, by websocket or by SPDY.
func (a *apiServer) exec(w http.ResponseWriter, r *http.Request, pod string) {
	p, args := a.processes[pod], r.URL.Query()["command"]
	if c := r.URL.Query().Get("container"); c != "sluice" && c != "kube-proxy" {
		a.t.Errorf("a command is run in container %q", c)
	}
	a.running.Add(1)
	defer a.running.Add(-1)
	if wsstream.IsWebSocketRequest(r) && a.spdyOnly {
		http.Error(w, "what is that?", http.StatusBadRequest)
		return
	}
	if wsstream.IsWebSocketRequest(r) {
		conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{remotecommand.StreamProtocolV5Name: {Binary: true, Channels: []wsstream.ChannelType{
			wsstream.ReadChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.ReadChannel,
		}}})
		_, channels, err := conn.Open(w, r)
		if err != nil {
			a.t.Error(err)
			return
		}
		code, failure := p(args, streams{channels[0], channels[1], channels[2]})
		writeStatus(channels[3], code, failure)
		_ = conn.Close()
		return
	}
	a.execSPDY(w, r, func(s map[string]httpstream.Stream) {
		code, failure := p(args, streams{s[v1.StreamTypeStdin], s[v1.StreamTypeStdout], s[v1.StreamTypeStderr]})
		writeStatus(s[v1.StreamTypeError], code, failure)
	})
}

func (a *apiServer) execSPDY(w http.ResponseWriter, r *http.Request, run func(map[string]httpstream.Stream)) {
	if _, err := httpstream.Handshake(r, w, []string{remotecommand.StreamProtocolV4Name}); err != nil {
		a.t.Error(err)
		return
	}
	came := make(chan httpstream.Stream)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, replied <-chan struct{}) error {
		go func() {
			<-replied
			came <- s
		}()
		return nil
	})
	if conn == nil {
		a.t.Error("no upgrade to SPDY")
		return
	}
	all := map[string]httpstream.Stream{}
	for len(all) < 4 {
		s := <-came
		all[s.Headers().Get(v1.StreamType)] = s
	}
	run(all)
	_ = conn.Close()
}

func writeStatus(w io.Writer, code int, failure string) {
	s := metav1.Status{Status: metav1.StatusSuccess}
	switch {
	case failure != "":
		s = metav1.Status{Status: metav1.StatusFailure, Message: failure}
	case code != 0:
		s = metav1.Status{
			Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason, Message: "it failed",
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(code)}}},
		}
	}
	_ = json.NewEncoder(w).Encode(s) // the client has gone
}

// says returns a process that writes text to its standard error and exits.
func says(code int, text string) process {
	return func(_ []string, s streams) (int, string) {
		fmt.Fprintln(s.stderr, text)
		return code, ""
	}
}

// dials returns a process that acts as sluice dial-stdio for a daemon.
func dials(t *testing.T, daemon http.Handler) process {
	server := httptest.NewServer(daemon)
	t.Cleanup(server.Close)
	return func(args []string, s streams) (int, string) {
		if want := []string{program, "dial-stdio", "--socket=" + statusapi.DefaultSocket}; !slices.Equal(args, want) {
			return 0, fmt.Sprintf("run %q, want %q", args, want)
		}
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			return 1, err.Error()
		}
		fmt.Fprintln(s.stderr, statusapi.Connected)
		go func() {
			_, _ = io.Copy(conn, s.stdin)
			_ = conn.(*net.TCPConn).CloseWrite()
		}()
		_, _ = io.Copy(s.stdout, conn)
		return 0, ""
	}
}

// answers returns a daemon with responses by path.
func answers(all map[string]any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(statusapi.VersionHeader, statusapi.Version)
		answer, ok := all[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			answer = statusapi.Error{Message: "no " + r.URL.Path}
		}
		if f, is := answer.(func() any); is {
			answer = f()
		}
		_ = json.NewEncoder(w).Encode(answer) // the client has gone
	})
}

// noConfig prevents a test from using the user's own cluster.
func noConfig(t *testing.T) {
	t.Helper()
	t.Setenv("KUBECONFIG", "")
	t.Setenv("HOME", t.TempDir())
	if err := os.Unsetenv("KUBERNETES_SERVICE_HOST"); err != nil {
		t.Fatal(err)
	}
}
