package page

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"strings"
)

// cookieName is the cookie of a reader who has presented the token.
const cookieName = "notifier-page"

// admits reports whether the reader may read. If not, it has answered the request. It moves a token from the address into a cookie, to keep
// it out of links and the browser's history.
func (p *page) admits(w http.ResponseWriter, r *http.Request) bool {
	if p.Token == "" {
		return true
	}
	query := r.URL.Query()
	given := query.Get("token")
	query.Del("token")
	here := linkHere(r, query)
	if equal(given, p.Token) {
		http.SetCookie(w, &http.Cookie{ //nolint:gosec // not Secure without TLS: the token itself came in clear text
			Name: cookieName, Value: p.cookie(), HttpOnly: true, SameSite: http.SameSiteStrictMode,
			Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https",
		})
		w.Header().Set("Location", here)
		w.WriteHeader(http.StatusSeeOther)
		return false
	}
	if bearer, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); found && equal(bearer, p.Token) {
		return true
	}
	if cookie, err := r.Cookie(cookieName); err == nil && equal(cookie.Value, p.cookie()) {
		return true
	}
	w.Header().Set("WWW-Authenticate", "Bearer")
	p.render(w, http.StatusUnauthorized, "unauthorized.html", here)
	return false
}

// cookie proves to all workers with this token that a reader has presented it. It does not contain the token.
func (p *page) cookie() string {
	mac := hmac.New(sha256.New, []byte(p.Token))
	mac.Write([]byte(cookieName))
	return hex.EncodeToString(mac.Sum(nil))
}

// equal compares secrets in constant time, for any lengths.
func equal(given, secret string) bool {
	g, s := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(g[:], s[:]) == 1
}
