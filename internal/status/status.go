package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/screen"
)

// Status is the state of a deployment at one moment. If a part did not answer, its fields are empty and Unknown has the reason.
type Status struct {
	At          time.Time    `json:"at"`
	Workers     []Worker     `json:"workers"`
	Mismatches  []Mismatch   `json:"mismatches,omitempty"`
	Backlog     Backlog      `json:"backlog"`
	Redis       Redis        `json:"redis"`
	NATS        NATS         `json:"nats"`
	Revision    string       `json:"revision"` // of the limits in force: "<generation>:<revision>"
	Limits      []Limit      `json:"limits"`   // with used slots or denials, the fullest first, as far as workers report them
	Suppressed  []Suppressed `json:"suppressed,omitempty"`
	Channels    []Channel    `json:"channels,omitempty"`
	Budgets     []Budget     `json:"budgets,omitempty"`      // of requests to Slack
	Changes     []Change     `json:"changes,omitempty"`      // overrides of limits in force
	Mutes       []Mute       `json:"mutes,omitempty"`        // in force, and recurring
	DeadLetters []DeadLetter `json:"dead_letters,omitempty"` // by reason
	Minutes     []Minute     `json:"minutes,omitempty"`      // of the last hour, the oldest first, summed over the workers
	Unknown     []string     `json:"unknown,omitempty"`      // sentences: which part did not answer, and why
	Omitted     []string     `json:"omitted,omitempty"`      // sentences: which worker left entries out of its report
}

// The parts of a deployment that may not answer. A sentence of Unknown begins with its part. Everything stands for all parts.
const (
	Everything      = "the state cannot be asked"
	BacklogPart     = "backlog"
	DeadLettersPart = "dead letters"
	LimitsPart      = "limits"
)

// Knows reports whether a part of the deployment answered. If it did not, the part's numbers are 0 without meaning.
func (s Status) Knows(part string) bool {
	return !slices.ContainsFunc(s.Unknown, func(sentence string) bool {
		what, _, _ := strings.Cut(sentence, ": ")
		return what == part || what == Everything
	})
}

// ShadowMode is a sentence about the workers that send events although limits deny them, perhaps only some of all; "" if none does.
func (s Status) ShadowMode() string {
	n := 0
	for _, w := range s.Workers {
		if w.Settings["NOTIFIER_SHADOW"] == "true" {
			n++
		}
	}
	switch n {
	case 0:
		return ""
	case len(s.Workers):
		return "limits deny no event"
	}
	return fmt.Sprintf("limits deny no event on %d of %d workers", n, len(s.Workers))
}

// Worker is an instance's report of itself.
type Worker struct {
	Instance  string            `json:"instance"` // unique for each start
	Name      string            `json:"name"`     // of its host
	Process   int               `json:"pid"`      // process number on the host
	Version   string            `json:"version"`
	Started   time.Time         `json:"started"` // by the worker's clock
	Up        time.Duration     `json:"up_ns"`   // how long it has been running
	Ready     bool              `json:"ready"`
	NotReady  string            `json:"not_ready,omitempty"` // why
	Degraded  string            `json:"degraded,omitempty"`  // the active failure policy while Redis is unavailable
	Failing   string            `json:"failing,omitempty"`   // why the latest post or storing failed, Redis is unavailable or live limits are not followed; "": all works
	InHand    int               `json:"in_hand"`             // received events without an outcome
	PerMinute Rates             `json:"per_minute"`
	Revision  string            `json:"revision"`
	Journal   *journal.Health   `json:"journal,omitempty"` // how far it has written the journal; nil: everything but the last second
	Settings  map[string]string `json:"settings"`          // settings that must be equal on all workers, by variable; no secrets
}

// Unjournaled reports whether the worker cannot write the journal.
func (w Worker) Unjournaled() bool { return w.Journal != nil && w.Journal.Error != "" }

// Problem is what keeps a worker from a part of its work, and why.
type Problem struct{ What, Why string }

// SharedProblem is a problem that workers have for the same reason.
type SharedProblem struct {
	Problem
	Workers []string // names
}

// fewWorkers is how many workers with the same problem are named. The lines of forty workers without Redis would push the limits off the screen.
const fewWorkers = 3

// Who names the workers, or the first one and the number of the rest.
func (p SharedProblem) Who() string {
	if len(p.Workers) > fewWorkers {
		return fmt.Sprintf("%s and %d more", p.Workers[0], len(p.Workers)-1)
	}
	return strings.Join(p.Workers, ", ")
}

// Problems lists the problems of workers at a time, each once.
func Problems(workers []Worker, at time.Time) (problems []SharedProblem) {
	for i, name := range Names(workers) {
		for _, problem := range workers[i].Problems(at) {
			known := slices.IndexFunc(problems, func(other SharedProblem) bool { return other.Problem == problem })
			if known < 0 {
				known = len(problems)
				problems = append(problems, SharedProblem{Problem: problem})
			}
			problems[known].Workers = append(problems[known].Workers, name)
		}
	}
	return problems
}

// Problems lists the problems of the worker at a time.
func (w Worker) Problems(at time.Time) (problems []Problem) {
	if !w.Ready {
		problems = append(problems, Problem{"not ready", w.NotReady})
	}
	if w.Failing != "" {
		problems = append(problems, Problem{"failing", w.Failing})
	}
	if w.Unjournaled() {
		unwritten := screen.Duration(at.Sub(w.Journal.Complete).Truncate(time.Second))
		problems = append(problems, Problem{"journal", fmt.Sprintf("not written for %s: %s", unwritten, w.Journal.Error)})
	}
	return problems
}

// Report is a worker's answer to a request for its status.
type Report struct {
	Worker

	Limits       []Limit       `json:"limits,omitempty"`        // with used slots or denials, the fullest first
	LimitsUnread bool          `json:"limits_unread,omitempty"` // the worker has not read the use of the limits from Redis, so Limits is empty
	Channels     []Channel     `json:"channels,omitempty"`      // from the settings, without their queues
	Budgets      []Budget      `json:"budgets,omitempty"`       // of requests to Slack, as this worker last counted them
	Changes      []Change      `json:"changes,omitempty"`       // overrides of limits in force
	Mutes        []Mute        `json:"mutes,omitempty"`         // in force, and recurring
	Minutes      []Minute      `json:"minutes,omitempty"`       // of the last hour, the oldest first
	Suppressed   []Suppressed  `json:"suppressed,omitempty"`
	Omitted      []Omission    `json:"omitted,omitempty"` // by Encode
	SlowestCall  time.Duration `json:"slowest_call_ns"`   // of Redis, in the last minute
}

// Omission is the number of entries of a kind that are missing in a report.
type Omission struct {
	Kind    string `json:"kind"` // such as "limits that are not full"
	Missing int    `json:"missing"`
	Of      int    `json:"of"` // 0: the worker does not know the entries
}

// String is "12 of 500 limits that are not full".
func (o Omission) String() string {
	if o.Of == 0 {
		return o.Kind
	}
	return fmt.Sprintf("%d of %d %s", o.Missing, o.Of, o.Kind)
}

// Rates are events of the last minute.
type Rates struct {
	Sent    int64 `json:"sent"`
	Dropped int64 `json:"dropped"`
	Delayed int64 `json:"delayed"` // began to wait for a slot
	Folded  int64 `json:"folded"`  // counted in a message of their key
	Other   int64 `json:"other"`   // duplicate, dead and expired
}

// Mismatch is a setting that differs between workers although it must not.
type Mismatch struct {
	Variable string              `json:"variable"`
	Values   map[string][]string `json:"values"` // value -> names of workers
}

// Backlog is the number of events without an outcome.
type Backlog struct {
	Waiting  int64            `json:"waiting"`         // in the producers' stream, not delivered to any worker
	Unacked  int64            `json:"unacked"`         // delivered and not acknowledged
	InRoom   map[string]int64 `json:"in_room"`         // by reason of waiting (room.Reason)
	Stream   int64            `json:"stream_messages"` // of the producers' stream
	Capacity int64            `json:"stream_bytes_max"`
	Bytes    int64            `json:"stream_bytes"`
	Paused   []stream.Pause   `json:"paused,omitempty"` // consumers that somebody paused
}

// Redis is the server with the limits' state.
type Redis struct {
	Role        string        `json:"role"` // primary, replica
	Version     string        `json:"version"`
	Replicas    int           `json:"replicas"`
	Memory      int64         `json:"memory_bytes"`
	MaxMemory   int64         `json:"memory_max_bytes"`
	SlowestCall time.Duration `json:"slowest_call_ns"` // of the workers' calls of the last minute
}

// String returns what is known about Redis; "" for nothing.
func (r Redis) String() string {
	var known []string
	if r.Role != "" {
		known = append(known, strings.TrimSpace(r.Role+" "+r.Version), fmt.Sprintf("replicas: %d", r.Replicas))
	}
	if r.Memory > 0 {
		known = append(known, "memory "+screen.Bytes(r.Memory, r.MaxMemory))
	}
	if r.SlowestCall > 0 {
		known = append(known, "slowest call of the last minute "+screen.Duration(r.SlowestCall))
	}
	return strings.Join(known, ", ")
}

// NATS is the server or the cluster.
type NATS struct {
	Server   string `json:"server"`
	Version  string `json:"version"`
	Cluster  string `json:"cluster,omitempty"`
	Replicas int    `json:"replicas"`    // of the producers' stream
	Lagging  int    `json:"lagging"`     // replicas that are not current
	Bytes    int64  `json:"store_bytes"` // of the producers' stream, the room and the dead letters
}

// Limit is one limit of one path, and its denials in the last minute.
type Limit struct {
	limits.Use
	PerMinute int64 `json:"denials_per_minute"`
}

// Suppressed counts the present drops of a category by a level, since these drops began. Drops have ended after a minute without any.
type Suppressed struct {
	Category string    `json:"category"`
	Level    string    `json:"level"`
	Count    int64     `json:"count"`
	Titles   []string  `json:"titles,omitempty"`
	Since    time.Time `json:"since"`
	Until    time.Time `json:"until,omitzero"`  // when the next slot opens or the mute ends; zero: now if Open, none if Never, and otherwise not known
	Open     bool      `json:"open,omitempty"`  // the limit has free slots again, or the mute has ended
	Never    bool      `json:"never,omitempty"` // the limit has no slots
}

// OfLimit reports whether a limit suppresses. Otherwise there is no next slot.
func (s Suppressed) OfLimit() bool { return limits.IsOfLimit(s.Level) }

// OfKeys reports whether a limit of each key suppresses: every key has a next slot of its own.
func (s Suppressed) OfKeys() bool { return limits.Node{Level: s.Level}.OfKeys() }

// Channel is a destination. At its pace it takes no post until PacedUntil, because it has had as many posts as its rate and burst allow.
type Channel struct {
	Name        string    `json:"name"`
	PausedUntil time.Time `json:"paused_until,omitzero"`
	PacedUntil  time.Time `json:"paced_until,omitzero"` // of its next post; it was at its pace when a worker last counted
	Queue       *int64    `json:"queue,omitempty"`      // events that wait for it in the room; nil: not known
	Held        int64     `json:"held,omitempty"`       // deliveries that wait for it in workers; some of their events are still in the room
	PerMinute   int64     `json:"per_minute"`           // accepted messages in the last minute
	Rate        float64   `json:"rate"`                 // maximum of messages per second; 0: no bound
	LastDigest  time.Time `json:"last_digest,omitzero"` // posted by a running worker
}

// Queued is the number of events that wait for the channel in the room, as far as it is known.
func (c Channel) Queued() int64 {
	if c.Queue == nil {
		return 0
	}
	return *c.Queue
}

// Budget is the use of a number of requests to Slack that all workers share.
type Budget struct {
	Name        string    `json:"name"`    // workspace: posts to all channels; updates: updates of messages; lookups: look-ups of posts
	Limit       string    `json:"limit"`   // such as 5/1s
	Used        int64     `json:"used"`    // requests of the last window
	Size        int64     `json:"size"`    // requests that a window may have
	Waiting     int64     `json:"waiting"` // channels that wait for the workspace; reserved updates; reserved look-ups
	PausedUntil time.Time `json:"paused_until,omitzero"`
}

// Change is an override in force.
type Change struct {
	Path   string    `json:"path"`
	Limit  string    `json:"limit"`
	Shadow bool      `json:"shadow,omitempty"`
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	Until  time.Time `json:"until,omitzero"` // when it expires
}

// LimitPath returns the path of the limits that the change replaces, as [Limit] has it: "" for the global limit.
func (c Change) LimitPath() string {
	if c.Path == limits.LevelGlobal {
		return ""
	}
	return c.Path
}

// Mute is a mute in force or, without an end, the schedule of a recurring mute.
type Mute struct {
	Path   string    `json:"path"`
	Reason string    `json:"reason"`
	By     string    `json:"by"`
	Except string    `json:"except,omitempty"` // severity of the events that are sent anyway
	Every  string    `json:"every,omitempty"`  // the schedule
	At     time.Time `json:"at"`
	Until  time.Time `json:"until,omitzero"`
}

// DeadLetter is the number of dead letters with a reason.
type DeadLetter struct {
	Reason string `json:"reason"`
	Count  int64  `json:"count"`
}

// Minute has the number of events in one minute.
type Minute struct {
	At      time.Time `json:"at"`
	Sent    int64     `json:"sent"`
	Dropped int64     `json:"dropped"`
	Delayed int64     `json:"delayed"` // that began to wait for a slot
}
