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

// etcdURL is where etcd listens: inside its host only, hence without TLS.
const etcdURL = "http://127.0.0.1:2379"

// StartEtcd starts etcd, with what an earlier one has kept, and waits until it answers.
func (c *ControlPlane) StartEtcd(ctx context.Context) error {
	c.starts++
	const peers = "http://127.0.0.1:2380"
	p, err := process.Start(c.settings.Host, process.Spec{
		Name: fmt.Sprintf("etcd-%d", c.starts), Dir: c.settings.Dir, Path: c.settings.Etcd,
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
	return await(ctx, p, func(ctx context.Context) error {
		_, err := c.revision(ctx)
		return err
	})
}

// KillEtcd takes etcd away at once, as a crash does. Its data stays.
func (c *ControlPlane) KillEtcd() {
	if c.etcd != nil {
		c.etcd.Kill()
		c.etcd = nil
	}
}

// Compact makes etcd forget all but the newest state of each object, as the
// API server makes it do every five minutes. Who watched an older state cannot
// go on from there.
func (c *ControlPlane) Compact(ctx context.Context) error {
	revision, err := c.revision(ctx)
	if err != nil {
		return err
	}
	// Numbers of 64 bits are strings in this dialect.
	return c.askEtcd(ctx, "/v3/kv/compaction", map[string]any{"revision": revision, "physical": true}, nil)
}

// revision asks etcd for its newest revision.
func (c *ControlPlane) revision(ctx context.Context) (string, error) {
	var answer struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	err := c.askEtcd(ctx, "/v3/kv/range", map[string]any{"key": "AA==", "count_only": true}, &answer)
	return answer.Header.Revision, err
}

// Entry is an object as the API server keeps it.
type Entry struct {
	Key   string // below the API server's root
	Value []byte
}

// Put writes objects behind the API server's back. It is for many objects whose
// creation is not what matters: the API server reads all ClusterIPs twice for
// each new one. It is away meanwhile, so that its parts cannot find one object
// without the other and begin to repair that.
func (c *ControlPlane) Put(ctx context.Context, entries []Entry) error {
	const atOnce = 100 // etcd takes 128
	type put struct {
		Key   []byte `json:"key"` // these become base64
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
		if err := c.askEtcd(ctx, "/v3/kv/txn", map[string]any{"success": success}, nil); err != nil {
			return err
		}
	}
	return c.StartAPIServer(ctx)
}

func (c *ControlPlane) askEtcd(ctx context.Context, path string, question, answer any) error {
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
