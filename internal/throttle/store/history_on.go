//go:build histories

package store

import (
	"context"
	"encoding/gob"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
)

// recorder writes what this process records. A record reaches the file at once, so a process that is killed loses none.
type recorder struct {
	mu      sync.Mutex
	file    *gob.Encoder
	until   time.Time // zero: to the end
	process string
	calls   int
	inForce map[*Rules]limits.Position // of the limits that the file has
}

// recording is nil if no folder is named.
var recording = newRecorder(os.Getenv("HISTORY_FOLDER"))

func newRecorder(folder string) *recorder {
	if folder == "" {
		return nil
	}
	until, _ := time.Parse(time.RFC3339, os.Getenv("HISTORY_UNTIL"))
	h := &recorder{until: until, process: NewNonce(), inForce: make(map[*Rules]limits.Position)}
	file, err := os.Create(filepath.Join(folder, h.process+".calls")) //nolint:gosec // the test names the folder
	if err != nil {
		panic(err)
	}
	h.file = gob.NewEncoder(file)
	return h
}

// unended is a call whose end is still to be recorded. The zero value is a call that is not recorded.
type unended struct{ call string }

// record writes the begin of a call, and returns a context with which the script marks its run. Self-tests have keys of their own and are not
// recorded.
func (d *deployment) record(ctx context.Context, begin recorded) (context.Context, unended) {
	if recording == nil || strings.Contains(d.keys.calls, ":scratch:") || !recording.until.IsZero() && time.Now().After(recording.until) {
		return ctx, unended{}
	}
	recording.mu.Lock()
	defer recording.mu.Unlock()
	if rules := begin.rules; rules != nil {
		begin.Rules = rules.Position
		if _, known := recording.inForce[rules]; !known {
			recording.inForce[rules] = rules.Position
			s := d.settings
			recording.write(recorded{
				Rules:    rules.Position,
				InForce:  &recordedRules{rules.Tree.AllLevels(), rules.Tree.Guarantees(), rules.Mutes},
				Settings: &recordedSettings{s.Lease, s.Retention, s.PairTTL, s.Flap, s.Forward || rules.Shadow != nil},
			})
		}
	}
	recording.calls++
	begin.Call, begin.Time = fmt.Sprintf("%s-%d", recording.process, recording.calls), time.Now()
	for _, lease := range begin.Leases {
		begin.Trees = append(begin.Trees, recording.inForce[lease.rules])
	}
	recording.write(begin)
	return script.WithMark(ctx, begin.Call), unended{begin.Call}
}

// end writes the end of a call.
func (r unended) end(answer recorded, err error) {
	if r.call == "" {
		return
	}
	answer.Call, answer.Ends, answer.Time = r.call, true, time.Now()
	if err != nil {
		answer.Err = err.Error()
	}
	recording.mu.Lock()
	defer recording.mu.Unlock()
	recording.write(answer)
}

// write appends a record. The caller holds the lock.
func (h *recorder) write(r recorded) {
	if err := h.file.Encode(r); err != nil {
		panic(err)
	}
}
