package page

import (
	"net"

	"github.com/seed-4578ace9/notifier/internal/httpserver"
)

// isLocal reports whether only this host can reach an address.
func isLocal(address net.Addr) bool {
	tcp, ok := address.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// isNamed reports whether a request names this host or the page's address.
func (p *page) isNamed(host string) bool {
	return httpserver.NamesThisHost(host) || httpserver.HostOf(host) == p.host && p.host != ""
}
