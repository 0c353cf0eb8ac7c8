package status

import (
	"context"
	"net/http"
	"strings"
)

// Authenticate returns a handler that calls next if allow returns nil for the
// request's bearer token and path, and otherwise responds with the error. A request
// without a token gets 401.
func Authenticate(next http.Handler, allow func(ctx context.Context, token, path string) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := refuse(http.StatusUnauthorized, "the request has no token: send one of the cluster, Authorization: Bearer TOKEN")
		if token := bearerToken(r); token != "" {
			err = allow(r.Context(), token, r.URL.Path)
		}
		if err == nil {
			next.ServeHTTP(w, r)
			return
		}
		send(w, nil, err)
	})
}

// bearerToken returns the token of a request, empty if there is none.
func bearerToken(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}
