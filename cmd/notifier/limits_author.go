package main

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"os"
	"regexp"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/config"
)

// natsUser is the name of the user as whom these settings connect, "" for none. A token is no name.
func natsUser(settings config.NATS) string {
	return cmp.Or(settings.User, userInURL(settings.URL.Reveal()), userInCreds(settings.CredsFile))
}

// userInURL is the user in the first of several URLs that has one. What stands there without a password is a token.
func userInURL(urls string) string {
	for text := range strings.SplitSeq(urls, ",") {
		parsed, err := url.Parse(strings.TrimSpace(text))
		if err != nil || parsed.User == nil {
			continue
		}
		if _, hasPassword := parsed.User.Password(); hasPassword {
			return parsed.User.Username()
		}
	}
	return ""
}

var userJWT = regexp.MustCompile(`-+BEGIN NATS USER JWT-+\s+[\w-]+\.([\w-]+)\.[\w-]+\s+-+END NATS USER JWT-+`)

// userInCreds is the name that a credentials file gives its user.
func userInCreds(path string) string {
	if path == "" {
		return ""
	}
	text, err := os.ReadFile(path) //nolint:gosec // who runs the program names the file
	if err != nil {
		return ""
	}
	found := userJWT.FindSubmatch(text)
	if found == nil {
		return ""
	}
	claims, err := base64.RawURLEncoding.DecodeString(string(found[1]))
	if err != nil {
		return ""
	}
	var user struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(claims, &user) != nil {
		return ""
	}
	return user.Name
}
