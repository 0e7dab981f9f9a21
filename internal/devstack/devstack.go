//go:build !nodev

package devstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/nats-io/nats-server/v2/server"
)

// The usual ports of the servers, taken where they are free.
const (
	natsPort  = 4222
	redisPort = 6379
)

const host = "127.0.0.1"

// readyTimeout is how long the NATS server may take to start; it takes milliseconds.
const readyTimeout = 10 * time.Second

// Server is one that runs in this process.
type Server struct {
	URL   string
	Moved bool // its usual port was taken, so it listens on another one
	Port  int  // the usual port

	// Stop ends the server and removes what it kept. It may be called once.
	Stop func()
}

// StartNATS runs a NATS server with JetStream.
func StartNATS() (*Server, error) {
	folder, err := os.MkdirTemp("", "notifier-dev-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for jetstream: %w", err)
	}
	port, moved := freePort(natsPort)
	options := &server.Options{
		ServerName: "notifier-dev", Host: host, Port: port, JetStream: true, StoreDir: folder, NoSigs: true, NoLog: true,
	}
	s, err := server.NewServer(options)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting nats: %w", err), os.RemoveAll(folder))
	}
	s.Start()
	stop := func() {
		s.Shutdown()
		s.WaitForShutdown()
		_ = os.RemoveAll(folder)
	}
	if !s.ReadyForConnections(readyTimeout) {
		stop()
		return nil, fmt.Errorf("starting nats: not ready within %s", readyTimeout)
	}
	return &Server{URL: s.ClientURL(), Moved: moved, Port: natsPort, Stop: stop}, nil
}

// StartRedis runs a stand-in for Redis, which keeps everything in memory.
func StartRedis() (*Server, error) {
	port, moved := freePort(redisPort)
	s := miniredis.NewMiniRedis()
	s.ClockTTL(true)
	if err := s.StartAddr(net.JoinHostPort(host, strconv.Itoa(max(port, 0)))); err != nil {
		return nil, fmt.Errorf("starting a stand-in for redis: %w", err)
	}
	return &Server{URL: "redis://" + s.Addr() + "/0", Moved: moved, Port: redisPort, Stop: s.Close}, nil
}

// freePort is the usual port, or -1 (any) if that is taken.
func freePort(usual int) (port int, moved bool) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", net.JoinHostPort(host, strconv.Itoa(usual)))
	if err != nil {
		return server.RANDOM_PORT, true
	}
	_ = listener.Close()
	return usual, false
}
