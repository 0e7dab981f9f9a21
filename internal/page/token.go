package page

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"net/url"
	"strings"
)

// cookieName is the cookie of a reader who has given the token once.
const cookieName = "notifier-page"

// admits tells whether the reader may read. If not, it has answered. A token in the address is moved into a cookie, so that it stands
// in no link and in no history.
func (p *page) admits(w http.ResponseWriter, r *http.Request) bool {
	if p.Token == "" {
		return true
	}
	query := r.URL.Query()
	given := query.Get("token")
	query.Del("token")
	// Relative, for a proxy that serves the page below a path of its own.
	here := (&url.URL{Path: "." + r.URL.Path, RawQuery: query.Encode()}).String()
	if equal(given, p.Token) {
		http.SetCookie(w, &http.Cookie{ //nolint:gosec // not Secure where the page is served without TLS, as the token itself comes then
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

// cookie proves that a reader has given the token, to every worker that has the same one. It does not hold the token.
func (p *page) cookie() string {
	mac := hmac.New(sha256.New, []byte(p.Token))
	mac.Write([]byte(cookieName))
	return hex.EncodeToString(mac.Sum(nil))
}

// equal compares secrets. How long it takes says nothing of them, their lengths included.
func equal(given, secret string) bool {
	g, s := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(g[:], s[:]) == 1
}
