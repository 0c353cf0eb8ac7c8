package app

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"sluice/internal/config"
)

// certificate writes a certificate for 127.0.0.1 and its key to files, and returns a
// client that trusts it.
func certificate(t *testing.T) (certFile, keyFile string, client *http.Client) {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	t.Cleanup(server.Close)
	pair := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, keyFile: {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile, server.Client()
}

// reviews answers reviews as an API server with two tokens, of users with the same
// names; only reader may read.
func reviews(w http.ResponseWriter, r *http.Request) {
	var answer any
	if strings.HasSuffix(r.URL.Path, "/tokenreviews") {
		var t authenticationv1.TokenReview
		_ = json.NewDecoder(r.Body).Decode(&t)
		t.Status.Authenticated = t.Spec.Token == "reader" || t.Spec.Token == "guest"
		t.Status.User.Username = t.Spec.Token
		answer = t
	} else {
		var s authorizationv1.SubjectAccessReview
		_ = json.NewDecoder(r.Body).Decode(&s)
		s.Status.Allowed = s.Spec.User == "reader" && s.Spec.NonResourceAttributes.Path == "/v1/node"
		answer = s
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// TestStatusForOtherHosts connects to an address that other hosts can reach:
// requests from the host itself must be authorised, too.
func TestStatusForOtherHosts(t *testing.T) {
	cert, key, client := certificate(t)
	api := httptest.NewServer(http.HandlerFunc(reviews))
	defer api.Close()
	for _, address := range []string{"0.0.0.0:10246", "[::]:10246", "192.0.2.1:10246", "[::ffff:192.0.2.1]:10246"} {
		l, err := statusTCP{address, cert, key}.listener(config.Configuration{}, objectSource{config: &rest.Config{Host: api.URL, QPS: 1}})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(l.guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "the answer")
		})))
		server.TLS = l.tls
		server.StartTLS()
		ask := func(authorization, path string, code int, says string) {
			t.Helper()
			r, err := http.NewRequest(http.MethodGet, server.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", authorization)
			resp, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != code || !strings.Contains(string(body), says) {
				t.Errorf("%s, %q %s: HTTP %d %s, error %v; want %d %s", address, authorization, path, resp.StatusCode, body, err, code, says)
			}
			if challenge := resp.Header.Get("WWW-Authenticate"); (code == 401) != strings.HasPrefix(challenge, "Bearer") {
				t.Errorf("%s, %q: WWW-Authenticate %q", address, authorization, challenge)
			}
		}
		ask("", "/v1/node", 401, `{"error":"the request has no token`)
		ask("Basic cmVhZGVyOg==", "/v1/node", 401, "the request has no token")
		ask("Bearer ", "/v1/node", 401, "the request has no token")
		ask("Bearer stranger", "/v1/node", 401, `{"error":"the API server does not accept this token`)
		ask("Bearer guest", "/v1/node", 403, `{"error":"user \"guest\" may not get /v1/node`)
		ask("Bearer reader", "/", 403, "may not get /")
		ask("Bearer reader", "/v1/node", 200, "the answer")
		ask("bearer  reader", "/v1/node", 200, "the answer")
		server.Close()
	}
}

// TestStatusWithoutAPIServer checks that nobody is let in if the API server does not
// answer.
func TestStatusWithoutAPIServer(t *testing.T) {
	cert, key, _ := certificate(t)
	api := httptest.NewServer(nil)
	api.Close()
	l, err := statusTCP{"0.0.0.0:10246", cert, key}.listener(config.Configuration{}, objectSource{config: &rest.Config{Host: api.URL}})
	if err != nil {
		t.Fatal(err)
	}
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/v1/node", nil)
	r.Header.Set("Authorization", "Bearer reader")
	l.guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it is answered") })).ServeHTTP(w, r)
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("HTTP %d %s, want 503", w.Code, w.Body)
	}
}

func TestStatusAtLoopback(t *testing.T) {
	cert, key, _ := certificate(t)
	tests := []struct {
		flags statusTCP
		tls   bool
	}{
		{statusTCP{address: "127.0.0.1:10246"}, false},
		{statusTCP{address: "[::1]:10246"}, false},
		{statusTCP{address: "[::ffff:127.0.0.1]:10246"}, false},
		{statusTCP{"127.0.0.1:10246", cert, key}, true},
	}
	for _, tt := range tests {
		l, err := tt.flags.listener(config.Configuration{}, objectSource{manifests: "."})
		if err != nil {
			t.Errorf("%v: %v", tt.flags, err)
			continue
		}
		if (l.tls != nil) != tt.tls || tt.tls && l.tls.MinVersion != tls.VersionTLS12 {
			t.Errorf("%v: TLS %v, want %t", tt.flags, l.tls, tt.tls)
		}
		for host, want := range map[string]int{"localhost:10246": 200, "127.0.0.1": 200, "evil.example:10246": 403} {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/v1/node", nil)
			r.Host = host
			l.guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("%v asked as %s: HTTP %d, want %d", tt.flags, host, w.Code, want)
			}
		}
	}
}

func TestStatusIsNotServedByDefault(t *testing.T) {
	for _, address := range []string{"", "none"} {
		l, err := statusTCP{address: address}.listener(config.Configuration{}, objectSource{})
		if err != nil || l.address.IsValid() {
			t.Errorf("%q: at %v, error %v; want nowhere", address, l.address, err)
		}
	}
}
