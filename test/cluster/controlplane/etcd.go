package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"sluice/test/cluster/process"
)

// etcdURL is reachable only inside the host, so it needs no TLS.
const etcdURL = "http://127.0.0.1:2379"

// StartEtcd starts etcd with the data of an earlier one, and waits until it answers.
func (c *ControlPlane) StartEtcd(ctx context.Context) error {
	c.startCount++
	const peers = "http://127.0.0.1:2380"
	p, err := process.Start(c.settings.Host, process.Spec{
		Name: fmt.Sprintf("etcd-%d", c.startCount), Dir: c.settings.Dir, Path: c.settings.Etcd,
		Args: []string{
			"--data-dir=" + c.path("etcd"),
			"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
			"--listen-peer-urls=" + peers, "--initial-advertise-peer-urls=" + peers, "--initial-cluster=default=" + peers,
			"--unsafe-no-fsync", // the data does not outlive the test
			"--log-level=warn",
		},
	})
	if err != nil {
		return err
	}
	c.etcd = p
	return waitReady(ctx, p, func(ctx context.Context) error {
		_, err := c.revision(ctx)
		return err
	})
}

// KillEtcd kills etcd, as in a crash. Its data remains.
func (c *ControlPlane) KillEtcd() {
	if c.etcd != nil {
		c.etcd.Kill()
		c.etcd = nil
	}
}

// Compact removes all but the latest revision of each object, as the API server does every five
// minutes. A watch from an older revision cannot continue.
func (c *ControlPlane) Compact(ctx context.Context) error {
	revision, err := c.revision(ctx)
	if err != nil {
		return err
	}
	// etcd's JSON gateway encodes 64-bit numbers as strings.
	return c.callEtcd(ctx, "/v3/kv/compaction", map[string]any{"revision": revision, "physical": true}, nil)
}

// revision returns etcd's latest revision.
func (c *ControlPlane) revision(ctx context.Context) (string, error) {
	var answer struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	err := c.callEtcd(ctx, "/v3/kv/range", map[string]any{"key": "AA==", "count_only": true}, &answer)
	return answer.Header.Revision, err
}

// Entry is an object as the API server stores it.
type Entry struct {
	Key   string // below the API server's root
	Value []byte
}

// Put writes objects directly to etcd. It is for many objects whose creation is not under test: the
// API server reads all ClusterIPs twice for each new one. The API server is stopped meanwhile, so
// that its repair loops never see one object without the other.
func (c *ControlPlane) Put(ctx context.Context, entries []Entry) error {
	const atOnce = 100 // etcd allows 128
	type put struct {
		Key   []byte `json:"key"` // encoded as base64
		Value []byte `json:"value"`
	}
	if c.memory != nil {
		return c.memory.put(entries)
	}
	c.KillAPIServer()
	for some := range slices.Chunk(entries, atOnce) {
		var success []map[string]put
		for _, e := range some {
			success = append(success, map[string]put{"request_put": {[]byte("/registry/" + e.Key), e.Value}})
		}
		if err := c.callEtcd(ctx, "/v3/kv/txn", map[string]any{"success": success}, nil); err != nil {
			return err
		}
	}
	return c.StartAPIServer(ctx)
}

func (c *ControlPlane) callEtcd(ctx context.Context, path string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return fmt.Errorf("ask etcd %s: %w", path, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, etcdURL+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("ask etcd %s: %w", path, err)
	}
	client := http.Client{
		Transport: &http.Transport{DialContext: c.dial, DisableKeepAlives: true},
		Timeout:   5 * time.Second,
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("ask etcd %s: %w", path, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("ask etcd %s: %s", path, resp.Status)
	}
	if answer == nil {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(answer); err != nil {
		return fmt.Errorf("read etcd's answer to %s: %w", path, err)
	}
	return nil
}
