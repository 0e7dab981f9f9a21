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
	start := func(name, usual string, url *config.Secret, begin func(address string) (string, func(), error)) (string, error) {
		started, end, err := begin(free(name, usual, shown))
		if err != nil {
			return "", fmt.Errorf("starting %s: %w", name, err)
		}
		stops = append(stops, end)
		*url = config.NewSecret(started)
		return started, nil
	}
	if nats = named("NOTIFIER_NATS_URL", settings.NATS.URL); !settings.NATS.URLSet {
		nats.shown, err = start("NATS", "127.0.0.1:4222", &settings.NATS.URL, startNATS)
		nats.assignment = unusual("NOTIFIER_NATS_URL", nats.shown, "nats://127.0.0.1:4222")
	}
	if redis = named("NOTIFIER_REDIS_URL", settings.Redis.URL); !settings.Redis.URLSet && err == nil {
		redis.shown, err = start("the stand-in for Redis", "127.0.0.1:6379", &settings.Redis.URL, startRedis)
		redis.assignment = unusual("NOTIFIER_REDIS_URL", redis.shown, "redis://127.0.0.1:6379/0")
	}
	if err != nil {
		stop()
		return nats, redis, stop, err
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

// unusual returns the assignment of a setting whose value is not the usual one.
func unusual(variable, value, usual string) string {
	if value == usual {
		return ""
	}
	return variable + "=" + shellWord(value)
}

// named is the address of a setting. A URL with a user may hold a password, and is not shown.
func named(variable string, url config.Secret) address {
	if strings.Contains(url.Reveal(), "@") {
		return address{shown: "as set in " + variable}
	}
	return address{url.Reveal(), unusual(variable, url.Reveal(), "")}
}

// free returns the usual address of a server, or a free port of the host if the usual port is taken.
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
