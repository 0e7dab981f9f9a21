package page

import (
	"net"
	"net/netip"
	"strings"
)

// isLocal tells whether an address is reached from this host alone.
func isLocal(address net.Addr) bool {
	tcp, ok := address.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// isNamed tells whether a request names this host: by localhost, by a loopback address, or as the page's address does. A page of another
// origin whose name leads to this host has the browser send that name.
func (p *page) isNamed(host string) bool {
	name := hostOf(host)
	if name == "localhost" || strings.HasSuffix(name, ".localhost") || name == p.host && name != "" {
		return true
	}
	address, err := netip.ParseAddr(name)
	return err == nil && address.Unmap().IsLoopback()
}

// hostOf is the host of an address, without port, brackets and the dot behind a full name, in small letters.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	return strings.TrimSuffix(strings.ToLower(strings.Trim(address, "[]")), ".")
}
