package dev

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/screen"
)

// startServers starts the servers that no setting names, sets their URLs, and lets the worker listen on free ports where the usual
// ports are in use. stop ends the servers.
func startServers(settings *config.Config, pane *screen.Pane) (stop func(), err error) {
	for address, isSet := range map[*string]bool{
		&settings.HTTP.Addr: settings.HTTP.AddrSet, &settings.Page.Addr: settings.Page.AddrSet, &settings.Ingest.Addr: settings.Ingest.AddrSet,
	} {
		if !isSet {
			*address += ",127.0.0.1:0"
		}
	}
	var url string
	stopNATS, stopRedis := func() {}, func() {}
	if !settings.NATS.URLSet {
		if url, stopNATS, err = startNATS(free("NATS", "127.0.0.1:4222", pane)); err != nil {
			return nil, fmt.Errorf("starting NATS: %w", err)
		}
		settings.NATS.URL = config.NewSecret(url)
	}
	if !settings.Redis.URLSet {
		if url, stopRedis, err = startRedis(free("the stand-in for Redis", "127.0.0.1:6379", pane)); err != nil {
			stopNATS()
			return nil, fmt.Errorf("starting the stand-in for Redis: %w", err)
		}
		settings.Redis.URL = config.NewSecret(url)
	}
	return func() { stopNATS(); stopRedis() }, nil
}

// free returns the usual address of a server. If the usual port is taken, it returns a free port of the host.
func free(name, usual string, pane *screen.Pane) string {
	listener, err := net.Listen("tcp", usual) //nolint:noctx // it does not wait
	if err == nil {
		_ = listener.Close()
		return usual
	}
	pane.Line("%s", pane.Faint(fmt.Sprintf("%s is taken, so %s listens on another port", usual, name)))
	host, _, _ := net.SplitHostPort(usual)
	return net.JoinHostPort(host, "0")
}

// startNATS runs a NATS server with JetStream in a temporary folder.
func startNATS(address string) (url string, stop func(), err error) {
	at, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return "", nil, err
	}
	if at.Port == 0 {
		at.Port = server.RANDOM_PORT
	}
	folder, err := os.MkdirTemp("", "notifier-dev-")
	if err != nil {
		return "", nil, fmt.Errorf("making a folder for jetstream: %w", err)
	}
	s, err := server.NewServer(&server.Options{
		ServerName: "notifier-dev", Host: at.IP.String(), Port: at.Port, JetStream: true, StoreDir: folder, NoSigs: true, NoLog: true,
	})
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(folder))
	}
	s.Start()
	stop = func() {
		s.Shutdown()
		s.WaitForShutdown()
		_ = os.RemoveAll(folder)
	}
	const patience = 10 * time.Second
	if !s.ReadyForConnections(patience) {
		stop()
		return "", nil, fmt.Errorf("not ready within %s", patience)
	}
	return s.ClientURL(), stop, nil
}

// startRedis runs a stand-in for Redis, which keeps everything in memory.
func startRedis(address string) (url string, stop func(), err error) {
	s := miniredis.NewMiniRedis()
	s.ClockTTL(true)
	if err := s.StartAddr(address); err != nil {
		return "", nil, err
	}
	return "redis://" + s.Addr() + "/0", s.Close, nil
}
