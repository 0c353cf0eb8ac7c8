package userspace

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice/internal/balance"
	"sluice/internal/proxy"
)

// TestHandedClientsOutlastTheClock wants what a successor knows of a client to be by the
// clock that nobody can set: otherwise all clients are forgotten when the clock goes
// forward, and none when it goes back.
func TestHandedClientsOutlastTheClock(t *testing.T) {
	key := proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: "default", Name: "web", Protocol: proxy.TCP}}
	at, from := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddr("10.0.0.9")
	text, err := json.Marshal(handed{Client: &known{key, from, proxy.ScopeLocal, at, time.Hour}})
	var h handed
	if err == nil {
		err = json.Unmarshal(text, &h)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &server{index: balance.NewIndex()}
	s.index.Update([]proxy.PortKey{key}, map[proxy.PortKey]*proxy.ServicePort{key: {Key: key, Affinity: 3 * time.Hour}})
	s.adopt(&h, nil, nil)
	for client, r := range s.index.Of(key).Clients {
		if idle := time.Since(r.Used); client == (balance.Client{Addr: from, Scope: proxy.ScopeLocal}) && r.Endpoint == at && idle >= time.Hour && idle < 2*time.Hour && strings.Contains(r.Used.String(), " m=") {
			return
		}
		t.Errorf("%+v: %+v", client, r)
	}
	t.Error("the client is not known")
}
