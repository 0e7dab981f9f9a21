package store

import (
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// recorded is the begin or the end of a call to Redis. With the build tag histories, and a folder named by the environment variable
// HISTORY_FOLDER, each process writes them to a file there, until the time HISTORY_UNTIL. Without the tag the program records nothing.
type recorded struct {
	Call string // names the call, at its begin and at its end
	Ends bool
	Kind string    // of the call; "": the record is not of a call
	Time time.Time // by the clock of the host, which all processes share

	// The begin: what is asked.
	rules      *Rules          // decide: the limits of the caller
	Rules      limits.Position // their position; put in force: that of the next limits
	Seen       limits.Position // put in force: the limits that are replaced
	Nonce      string
	Requests   []Request
	Leases     []Lease
	Trees      []limits.Position // of the limits in which the events of the leases were evaluated
	Admissions []Admission
	Clock      time.Time     // restore: of the caller
	Lasts      time.Duration // extend

	// The end: the answer, or the error.
	Decisions []Decision
	At        int64 // of the answer, where the answer has it
	Flags     []bool
	Err       string

	InForce  *recordedRules // limits that the file has not had before
	Settings *recordedSettings
}

// recordedRules are the texts from which [Rules] are compiled.
type recordedRules struct {
	Levels     []limits.Node
	Guarantees []limits.Guarantee
	Mutes      []*limits.Mute
}

// recordedSettings are the [Settings] beside the limits.
type recordedSettings struct {
	Lease, Retention, PairTTL time.Duration
	Flap                      Flap
	Forward                   bool
}
