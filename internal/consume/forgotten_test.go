package consume

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestForgottenSchedules has a server lose a message schedule from its list of schedules, but not from the stream, as after a kill. A worker
// makes the schedule due.
func TestForgottenSchedules(t *testing.T) {
	t.Parallel()
	f := newFixtureOn(t, servertest.StartNATS(t, func(*server.Options) {}))
	f.provision(usualAckWait)
	subject, target := testNames.Room().Schedule(room.Pair, "payments", "order-1")
	entry := from(room.Entry{Reason: room.Pair, ID: "order-1"}, 1)
	schedule := entry.Message(subject, nil, []byte(`{"title": "an event"}`))
	due := time.Now().Add(2 * time.Second)
	room.ScheduleAt(schedule, target, due)
	sequence := testkit.Must(f.js.PublishMsg(t.Context(), schedule))(t).Sequence

	f.server.Kill()
	list := filepath.Join(f.server.Dir, "jetstream", "$G", "streams", testNames.RoomStream, "msgs", "sched.db")
	testkit.Must(os.Stat(list))(t)
	empty := binary.LittleEndian.AppendUint64([]byte{1}, 0) // the version of the format, and the number of schedules
	empty = binary.LittleEndian.AppendUint64(empty, sequence+1)
	testkit.NoError(t, os.WriteFile(list, empty, 0o600))
	f.server.Restart()

	f.eventually("the schedule is late", func() bool { return time.Since(due) > time.Second })
	testkit.Equal(t, len(f.waiting(room.Pair)), 1, "schedules that the server has forgotten")
	f.room.claim = true
	w := f.newWorker(nil)
	w.watcher.recounts.overdue = time.Millisecond
	f.run(w)
	f.awaitSettled(1)
	f.requireOutcomes(map[string]int{"sent payments": 1})
	f.requireRoomEmpty()
	f.eventually("the log has a line", func() bool { return len(f.log.Lines("made message schedules due")) == 1 })
}
