package httpserver

import (
	"net"
	"net/netip"
	"strings"
)

// NamesThisHost reports whether the Host header of a request names this host, by localhost or a loopback address. If a web page of
// another origin has a name that resolves to this host, the browser sends that name.
func NamesThisHost(header string) bool {
	name := HostOf(header)
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	address, err := netip.ParseAddr(name)
	return err == nil && address.Unmap().IsLoopback()
}

// HostOf returns the host of an address in lower case, without the port, brackets, and the dot at the end of a full name.
func HostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	return strings.TrimSuffix(strings.ToLower(strings.Trim(address, "[]")), ".")
}
