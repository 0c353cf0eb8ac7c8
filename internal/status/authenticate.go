package status

import (
	"context"
	"net/http"
	"strings"
)

// Authenticate passes requests on whose bearer token allows to get the path. What
// allow returns instead of nil is answered.
func Authenticate(next http.Handler, allow func(ctx context.Context, token, path string) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := refuse(http.StatusUnauthorized, "who asks? Send a token of the cluster: Authorization: Bearer TOKEN")
		if token := bearer(r); token != "" {
			err = allow(r.Context(), token, r.URL.Path)
		}
		if err == nil {
			next.ServeHTTP(w, r)
			return
		}
		send(w, nil, err)
	})
}

// bearer returns the token of a request; empty: there is none.
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}
