package page

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// zoneCookie is the cookie with the browser's time zone. The page's script sets it.
const zoneCookie = "notifier-zone"

type zoneKey struct{}

// withZone returns the request with the reader's time zone in its context. The default is UTC.
func withZone(r *http.Request) (*http.Request, *time.Location) {
	zone := time.UTC
	if cookie, err := r.Cookie(zoneCookie); err == nil {
		if name, err := url.QueryUnescape(cookie.Value); err == nil && name != "Local" {
			if found, err := time.LoadLocation(name); err == nil {
				zone = found
			}
		}
	}
	return r.WithContext(context.WithValue(r.Context(), zoneKey{}, zone)), zone
}

// ZoneOf returns the time zone for the sentences of an answer. It is the zone of the page's reader, and time.Local outside of the page.
func ZoneOf(ctx context.Context) *time.Location {
	if zone, found := ctx.Value(zoneKey{}).(*time.Location); found {
		return zone
	}
	return time.Local
}
