package app

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"

	"sluice/internal/apiclient"
	"sluice/internal/proxy"
	"sluice/internal/statusapi"
)

// TestUnserved asks an API server for Services that are not watched, by name and by
// address.
func TestUnserved(t *testing.T) {
	answers := map[string]string{
		"/api/v1/namespaces/ns/services?fieldSelector=metadata.name%3Ddb&limit=10": `{"metadata": {"namespace": "ns", "name": "db"}, "spec": {"clusterIP": "None"}}`,
		"/api/v1/services?fieldSelector=spec.clusterIP%3D10.96.0.7&limit=10": `{"metadata": {"namespace": "ns", "name": "mesh",
			"labels": {"service.kubernetes.io/service-proxy-name": "mesh"}}, "spec": {"clusterIP": "10.96.0.7"}}`,
		"/api/v1/namespaces/ns/services?fieldSelector=metadata.name%3Dweb&limit=10":   `{"metadata": {"namespace": "ns", "name": "web"}, "spec": {"clusterIP": "10.96.0.8", "ports": [{"port": 80}]}}`,
		"/api/v1/namespaces/ns/services?fieldSelector=metadata.name%3Dbare&limit=10":  `{"metadata": {"namespace": "ns", "name": "bare"}, "spec": {"clusterIP": "10.96.0.9"}}`,
		"/api/v1/namespaces/ns/services?fieldSelector=metadata.name%3Dsix&limit=10":   `{"metadata": {"namespace": "ns", "name": "six"}, "spec": {"clusterIP": "fd00::5", "ports": [{"port": 80}]}}`,
		"/api/v1/namespaces/ns/services?fieldSelector=metadata.name%3Ddual&limit=10":  `{"metadata": {"namespace": "ns", "name": "dual"}, "spec": {"clusterIP": "fd00::6", "clusterIPs": ["fd00::6", "10.96.0.6"], "ports": [{"port": 80}]}}`,
		"/api/v1/namespaces/ns/services?fieldSelector=metadata.name%3Dalias&limit=10": `{"metadata": {"namespace": "ns", "name": "alias"}, "spec": {"type": "ExternalName", "externalName": "example.com", "clusterIP": "None"}}`,
		"/api/v1/namespaces/ns/services?fieldSelector=metadata.name%3Dnone&limit=10":  "",
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		item, known := answers[r.URL.String()]
		if !known {
			t.Errorf("asked %s", r.URL)
			http.Error(w, "{}", http.StatusForbidden)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [` + item + `]}`))
	}))
	defer server.Close()
	client, err := apiclient.New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	from, only4 := objectSource{client: client}, []proxy.Family{proxy.IPv4}
	for to, want := range map[string]statusapi.Reason{
		"ns/db": statusapi.Headless, "ns/db:http": statusapi.Headless, "10.96.0.7:80": statusapi.OtherProxy, "ns/web": "", "ns/none": "",
		"ns/bare": statusapi.NoPorts, "ns/alias": statusapi.ExternalName, "ns/six": statusapi.FamilyNotServed, "ns/dual": "",
	} {
		switch got := from.unserved(t.Context(), to, only4); {
		case got == nil, want == "" && len(got) != 0, want != "" && (len(got) != 1 || got[0].Why != want):
			t.Errorf("%s: %+v, want %q", to, got, want)
		}
	}
	server.Close()
	if got := from.unserved(t.Context(), "ns/db", only4); got != nil {
		t.Errorf("without an API server: %+v", got)
	}
}

// TestUnservedOfAFolder checks that the folder is read for them.
func TestUnservedOfAFolder(t *testing.T) {
	dir := t.TempDir()
	const text = "apiVersion: v1\nkind: Service\nmetadata: {name: db}\nspec: {clusterIP: None, ports: [{port: 80}]}\n"
	if err := os.WriteFile(filepath.Join(dir, "db.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	from := folderSource(dir)
	got := from.unserved(t.Context(), "default/db", proxy.Families[:])
	if len(got) != 1 || got[0].Why != statusapi.Headless || got[0].Name.Name != "db" {
		t.Errorf("%+v", got)
	}
	from.reading <- struct{}{} // somebody else's question
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := from.unserved(ctx, "default/db", proxy.Families[:]); got != nil {
		t.Errorf("it is read twice at a time: %+v", got)
	}
}
