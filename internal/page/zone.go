package page

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// zoneCookie is the cookie that names the time zone of the browser. The page's script sets it.
const zoneCookie = "notifier-zone"

type zoneKey struct{}

// withZone returns the request with the reader's time zone in its context; UTC if the browser has not named one that is known here.
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

// ZoneOf is the time zone of the reader who asks a [Source]; the local one if no reader of a page asks. The sentences of an answer have
// their times in that zone.
func ZoneOf(ctx context.Context) *time.Location {
	if zone, found := ctx.Value(zoneKey{}).(*time.Location); found {
		return zone
	}
	return time.Local
}
