package page

import (
	"context"

	"github.com/seed-4578ace9/notifier/internal/httpserver"
)

// Server serves the page on a listener of its own.
type Server struct {
	*httpserver.Server
	page *page
}

// Listen opens a listener. The caller must call Serve or Shutdown.
func Listen(ctx context.Context, address string, o Options) (*Server, error) {
	server, err := httpserver.Listen(ctx, "the page", "NOTIFIER_PAGE_ADDR", address)
	if err != nil {
		return nil, err
	}
	p := newPage(o)
	p.local, p.host = o.Token == "" && httpserver.NamesThisHost(server.Addr()), httpserver.HostOf(address)
	server.ForFew(p.handler(), o.Logger, "page server")
	return &Server{server, p}, nil
}

// Shutdown ends the event streams, and waits for running requests until ctx ends. Then it closes their connections.
func (s *Server) Shutdown(ctx context.Context) error {
	s.page.hub.close()
	return s.Server.Shutdown(ctx)
}
