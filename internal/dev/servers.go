package dev

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/seed-4578ace9/notifier/internal/config"
)

// address is where a server listens.
type address struct {
	shown      string
	assignment string // the setting that a command in another terminal needs; "" if the default is right
}

// startServers starts the servers that no setting names, sets their URLs, and lets the worker listen on free ports where the usual
// ports are in use. stop ends the servers.
func startServers(settings *config.Config, shown *display) (nats, redis address, stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, each := range stops {
			each()
		}
	}
	nats, redis = named("NOTIFIER_NATS_URL", settings.NATS.URL), named("NOTIFIER_REDIS_URL", settings.Redis.URL)
	for _, s := range []struct {
		name, usual string
		url         *config.Secret
		at          *address
		isSet       bool
		begin       func(address string) (url string, stop func(), err error)
	}{
		{"NATS", "127.0.0.1:4222", &settings.NATS.URL, &nats, settings.NATS.URLSet, startNATS},
		{"the stand-in for Redis", "127.0.0.1:6379", &settings.Redis.URL, &redis, settings.Redis.URLSet, startRedis},
	} {
		if s.isSet {
			continue
		}
		variable, _, _ := strings.Cut(s.at.assignment, "=")
		listening := free(s.name, s.usual, shown)
		started, end, err := s.begin(listening)
		if err != nil {
			stop()
			return nats, redis, stop, fmt.Errorf("starting %s: %w", s.name, err)
		}
		stops, *s.url, *s.at = append(stops, end), config.NewSecret(started), address{shown: started}
		if listening != s.usual {
			s.at.assignment = variable + "=" + started
		}
	}
	for address, isSet := range map[*string]bool{
		&settings.HTTP.Addr: settings.HTTP.AddrSet, &settings.Page.Addr: settings.Page.AddrSet, &settings.Ingest.Addr: settings.Ingest.AddrSet,
	} {
		if !isSet {
			*address += ",127.0.0.1:0"
		}
	}
	return nats, redis, stop, nil
}

// named is the address of a setting. A URL with a user may hold a password, and is not shown.
func named(variable string, url config.Secret) address {
	if strings.Contains(url.Reveal(), "@") {
		return address{shown: "as set in " + variable}
	}
	return address{url.Reveal(), variable + "=" + shellWord(url.Reveal())}
}

// free returns the usual address of a server. If the usual port is taken, it returns a free port of the host.
func free(name, usual string, shown *display) string {
	listener, err := net.Listen("tcp", usual) //nolint:noctx // it does not wait
	if err == nil {
		_ = listener.Close()
		return usual
	}
	shown.Line("%s", shown.Faint(fmt.Sprintf("%s is taken, so %s listens on another port", usual, name)))
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
