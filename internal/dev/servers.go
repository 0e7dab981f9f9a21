package dev

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/seed-4578ace9/notifier/internal/config"
)

// The usual ports of the servers, taken where they are free.
const (
	host      = "127.0.0.1"
	natsPort  = 4222
	redisPort = 6379
)

// address is where a server listens.
type address struct {
	shown      string
	assignment string // the setting that a command in another terminal needs; "" if the default is right
}

// startServers starts the servers that no setting names, and sets their URLs. stop ends them.
func startServers(settings *config.Config, shown *display) (nats, redis address, stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, each := range stops {
			each()
		}
	}
	start := func(name, variable string, usual int, url *config.Secret, begin func(port int) (string, func(), error)) (address, error) {
		port := freePort(usual)
		started, end, err := begin(port)
		if err != nil {
			return address{}, fmt.Errorf("starting %s: %w", name, err)
		}
		stops = append(stops, end)
		*url = config.NewSecret(started)
		if port == usual {
			return address{shown: started}, nil
		}
		shown.Line("%s", shown.Faint(fmt.Sprintf("port %d is taken, so %s listens on %s", usual, name, started)))
		return address{started, variable + "=" + started}, nil
	}
	if nats = named("NOTIFIER_NATS_URL", settings.NATS.URL); !settings.NATS.URLSet {
		nats, err = start("NATS", "NOTIFIER_NATS_URL", natsPort, &settings.NATS.URL, startNATS)
	}
	if redis = named("NOTIFIER_REDIS_URL", settings.Redis.URL); !settings.Redis.URLSet && err == nil {
		redis, err = start("the stand-in for Redis", "NOTIFIER_REDIS_URL", redisPort, &settings.Redis.URL, startRedis)
	}
	if err != nil {
		stop()
	}
	return nats, redis, stop, err
}

// named is the address of a setting. A URL with a user may hold a password, and is not shown.
func named(variable string, url config.Secret) address {
	if strings.Contains(url.Reveal(), "@") {
		return address{shown: "as set in " + variable}
	}
	return address{url.Reveal(), variable + "=" + shellWord(url.Reveal())}
}

// startNATS runs a NATS server with JetStream in a temporary folder.
func startNATS(port int) (url string, stop func(), err error) {
	folder, err := os.MkdirTemp("", "notifier-dev-")
	if err != nil {
		return "", nil, fmt.Errorf("making a folder for jetstream: %w", err)
	}
	s, err := server.NewServer(&server.Options{
		ServerName: "notifier-dev", Host: host, Port: port, JetStream: true, StoreDir: folder, NoSigs: true, NoLog: true,
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
func startRedis(port int) (url string, stop func(), err error) {
	s := miniredis.NewMiniRedis()
	s.ClockTTL(true)
	if err := s.StartAddr(net.JoinHostPort(host, strconv.Itoa(max(port, 0)))); err != nil {
		return "", nil, err
	}
	return "redis://" + s.Addr() + "/0", s.Close, nil
}

// freePort returns the usual port, or [server.RANDOM_PORT] if that is taken.
func freePort(usual int) int {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", net.JoinHostPort(host, strconv.Itoa(usual)))
	if err != nil {
		return server.RANDOM_PORT
	}
	_ = listener.Close()
	return usual
}
