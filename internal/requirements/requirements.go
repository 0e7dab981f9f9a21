// Package requirements has the oldest versions of servers that the notifier works with, and the error for an older server.
//
// It owns these versions: the documentation repeats them, and a test compares both. The package talks to no server and keeps no state, so its
// functions may run at once. A version that cannot be parsed counts as new enough.
package requirements

import (
	"fmt"
	"slices"
)

// Server is a kind of server, with its oldest supported version.
type Server struct {
	Name  string
	Since string // major.minor
	Needs string // the part of the notifier that needs the version, and why
}

// Redis returns the oldest Redis.
func Redis() Server { return Server{"Redis", "6.2", "the scripts need ZMSCORE"} }

// RedisFunctions returns the oldest Redis where the scripts run as functions.
func RedisFunctions() Server {
	return Server{"Redis", "7.0", "NOTIFIER_REDIS_SCRIPTING=function needs functions"}
}

// Valkey returns the oldest Valkey: its first release.
func Valkey() Server { return Server{"Valkey", "7.2", "the scripts need ZMSCORE"} }

// NATS returns the oldest nats-server.
func NATS() Server { return Server{"nats-server", "2.12", "the room needs message schedules"} }

// TooOld is the error for a server that is older than the oldest one.
type TooOld struct {
	Server
	Version string
	Address string // "" if it is unknown
}

func (e TooOld) Error() string {
	at := ""
	if e.Address != "" {
		at = " at " + e.Address
	}
	return fmt.Sprintf("%s %s%s is older than %s: %s", e.Name, e.Version, at, e.Since, e.Needs)
}

// Check returns a [TooOld] if the version of the server at an address is too old. The address may be "".
func (s Server) Check(version, address string) error {
	var found, least [2]int
	if _, err := fmt.Sscanf(version, "%d.%d", &found[0], &found[1]); err != nil {
		return nil //nolint:nilerr // the version is unknown
	}
	_, _ = fmt.Sscanf(s.Since, "%d.%d", &least[0], &least[1])
	if slices.Compare(found[:], least[:]) < 0 {
		return TooOld{s, version, address}
	}
	return nil
}
