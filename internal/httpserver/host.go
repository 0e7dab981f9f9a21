package httpserver

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Protect sets the headers of a page for people: its content security policy, and that no other page or cache gets anything of it.
func Protect(header http.Header, policy string) {
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
}

// NamesThisHost reports whether an address names this host alone, by localhost or a loopback address. The address may be the Host header
// of a request: if a web page of another origin has a name that resolves to this host, the browser sends that name.
func NamesThisHost(address string) bool {
	name := HostOf(address)
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.Unmap().IsLoopback()
}

// HostOf returns the host of an address in lower case, without the port, brackets, and the dot at the end of a full name.
func HostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	return strings.TrimSuffix(strings.ToLower(strings.Trim(address, "[]")), ".")
}
