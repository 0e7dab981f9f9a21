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
	Since string // major.minor, or major.minor.patch
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

// NATS returns the oldest nats-server. Older servers with message schedules let a producer of any stream name a subject in the headers
// Nats-Scheduler and Nats-Schedule-Next, and delete all messages there.
func NATS() Server {
	return Server{"nats-server", "2.12.8", "the room needs message schedules, and older servers let a producer delete the events of others"}
}

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
	found, known := numbers(version)
	least, _ := numbers(s.Since)
	if known && slices.Compare(found[:], least[:]) < 0 {
		return TooOld{s, version, address}
	}
	return nil
}

// numbers reads major, minor and patch of a version. A missing patch counts as 0.
func numbers(version string) (parts [3]int, known bool) {
	n, _ := fmt.Sscanf(version, "%d.%d.%d", &parts[0], &parts[1], &parts[2])
	return parts, n >= 2
}
