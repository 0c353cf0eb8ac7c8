package bugreport

import (
	"strings"
	"testing"
)

const (
	jwt = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0.PLANTED-signature_1"
	pem = "-----BEGIN EC PRIVATE KEY-----\nPLANTEDMHcCAQEEIIr\nPLANTEDYQ==\n-----END EC PRIVATE KEY-----"
)

// TestRedact checks that secrets of every known form are replaced, and nothing around
// them.
func TestRedact(t *testing.T) {
	for text, want := range map[string]string{
		"--master=https://admin:PLANTED@10.0.0.1:6443/x":        "--master=https://REDACTED@10.0.0.1:6443/x",
		"socks5://PLANTED@proxy:1080":                           "socks5://REDACTED@proxy:1080",
		"before\n" + pem + "\nafter":                            "before\nREDACTED\nafter",
		`{"log":"` + strings.ReplaceAll(pem, "\n", `\n`) + `"}`: `{"log":"REDACTED"}`,
		"cut off: -----BEGIN PRIVATE KEY-----\nPLANTED":         "cut off: REDACTED",
		"token is " + jwt + ", said the server":                 "token is REDACTED, said the server",
		"Authorization: Bearer PLANTEDabcdefg":                  "Authorization: REDACTED",
		`header "bearer PLANTEDabcdefg"`:                        `header "bearer REDACTED"`,
		`{"bearerToken":"PLANTED\"more","name":"web"}`:          `{"bearerToken":"REDACTED","name":"web"}`,
		"    client-key-data: UExBTlRFRA==\n    x: y":           "    client-key-data: REDACTED\n    x: y",
		"data LS0tLS1CRUdJTiBQTEFOVEVE= end":                    "data REDACTED end",
		"--token PLANTED --v=2":                                 "--token REDACTED --v=2",
		"--oidc-client-secret=PLANTED --v=2":                    "--oidc-client-secret=REDACTED --v=2",
		`msg="no" password="PLANTED more" node="a"`:             `msg="no" password=REDACTED node="a"`,
		`msg="no" password='PLANTED more' node="a"`:             `msg="no" password=REDACTED node="a"`,
		`{"log":"{\"token\":\"PLANTED\",\"name\":\"web\"}"}`:    `{"log":"{\"token\":\"REDACTED\",\"name\":\"web\"}"}`,
		`{\"token\": \"PLANTED\\\"PLANTED\\n\", \"v\": 2}`:      `{\"token\": \"REDACTED\", \"v\": 2}`,
		`{\\\"token\\\":\\\"PLANTED\\\"}`:                       `{\\\"token\\\":\\\"REDACTED`,
		`msg="no password=\"PLANTED more\" here"`:               `msg="no password=REDACTED here"`,
		`{\"token\":\"PLANTED` + "\nnext":                       `{\"token\":\"REDACTED` + "\nnext",
		"password='PLANTED cut\nnext":                           "password=REDACTED\nnext",
		"AWS_SECRET_ACCESS_KEY=PLANTED AWS_REGION=eu":           "AWS_SECRET_ACCESS_KEY=REDACTED AWS_REGION=eu",
		"export secret_key=PLANTED api_key=PLANTED":             "export secret_key=REDACTED api_key=REDACTED",
		`{'password': 'PLANTED\'PLANTED', 'name': 'web'}`:       `{'password': REDACTED, 'name': 'web'}`,
		`{'password': "PLANTED's", 'name': 'web'}`:              `{'password': REDACTED, 'name': 'web'}`,
		"GET /x?token=PLANTED&limit=500":                        "GET /x?token=REDACTED&limit=500",
		`"servicePort":"vault/token:http","name":"secret"`:      `"servicePort":"vault/token:http","name":"secret"`,
		`{"object":"Service ns/password","address":"[::1]:80"}`: `{"object":"Service ns/password","address":"[::1]:80"}`,
		`rest_client_requests_total{code="200",host="a:1"} 3`:   `rest_client_requests_total{code="200",host="a:1"} 3`,
		"kubeconfig: /var/lib/kube-proxy/kubeconfig.conf":       "kubeconfig: /var/lib/kube-proxy/kubeconfig.conf",
		"elements = { tcp . 10.96.0.10 . 80 : 0x1 } @ 10":       "elements = { tcp . 10.96.0.10 . 80 : 0x1 } @ 10",
	} {
		if got := string(redact([]byte(text))); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}
