package interleave

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// base is one event with everything that may happen to it.
var base = config{workers: 2, events: 1, messages: 2, limit: [2]uint8{1, 1}, lookUp: true, busy: true, faults: anyFault}

// with returns the base with changes.
func with(name string, change func(c *config)) *config {
	c := base
	c.name = name
	change(&c)
	return &c
}

// deployments are searched by TestEveryInterleaving. The budget is the number of faults in one run.
var deployments = []*config{
	with("one event", func(c *config) { c.budget = 4 }),
	with("one event that may wait in a worker", func(c *config) { c.budget, c.paced = 3, true }),
	with("one event that may wait in one of three workers", func(c *config) { c.workers, c.messages, c.busy, c.budget, c.paced = 3, 1, false, 3, true }),
	with("one event that may wait in a worker, policy open", func(c *config) { c.budget, c.paced, c.policy = 3, true, admits }),
	with("one event, three workers", func(c *config) { c.workers, c.budget = 3, 2 }),
	with("one event that Slack may reject", func(c *config) { c.budget, c.rejects = 3, true }),
	with("one event, nobody may look for posts", func(c *config) { c.budget, c.rejects, c.lookUp = 3, true, false }),
	with("one event, policy open", func(c *config) { c.budget, c.policy = 3, admits }),
	with("two events and one slot, policy local", func(c *config) {
		c.budget, c.events, c.messages, c.busy, c.policy = 2, 2, 1, false, share
	}),
	with("one event, policy closed", func(c *config) { c.budget, c.policy = 3, drops }),
	with("one event in a body", func(c *config) { c.budget, c.body, c.messages = 2, true, 3 }),
	with("two events and one slot, the limit is raised", func(c *config) {
		c.budget, c.events, c.messages, c.busy, c.digests = 2, 2, 1, false, true
		c.revised, c.limit = true, [2]uint8{1, 2}
	}),
	with("two events and two slots, the limit is lowered", func(c *config) {
		c.budget, c.events, c.messages, c.busy = 2, 2, 1, false
		c.revised, c.limit = true, [2]uint8{2, 1}
	}),
	with("two events and one slot, which may wait", func(c *config) {
		c.budget, c.events, c.messages, c.busy, c.delay = 1, 2, 3, false, true
	}),
	with("a firing event and the event that resolves it", func(c *config) {
		c.budget, c.events, c.resolves, c.limit = 2, 2, 1, [2]uint8{2, 2}
	}),
	with("one event without a slot, and the digest of it", func(c *config) { c.budget, c.limit, c.digests = 2, [2]uint8{}, true }),
	with("two events of one key, of which one is folded", func(c *config) { c.budget, c.events, c.messages, c.folds = 3, 2, 1, true }),
	with("three events of one key, of which two are folded", func(c *config) {
		c.budget, c.events, c.messages, c.busy, c.folds = 1, 3, 1, false, true
	}),
	with("two events of one key, and the update that counts one, kills and lost answers", func(c *config) {
		c.budget, c.events, c.messages, c.busy, c.folds, c.updates, c.faults = 2, 2, 1, false, true, true, kill|answerLost|replyLost
	}),
	with("two events of one key, and the update that counts one", func(c *config) {
		c.budget, c.events, c.messages, c.busy, c.folds, c.updates = 2, 2, 1, false, true, true
	}),
	with("a firing event, the event that resolves it, and the update that shows it", func(c *config) {
		c.budget, c.events, c.messages, c.busy, c.resolves, c.limit, c.updates = 2, 2, 1, false, 1, [2]uint8{2, 2}, true
	}),
	with("a firing event, the event that resolves it, and another one", func(c *config) {
		c.budget, c.events, c.messages, c.resolves, c.busy = 1, 3, 1, 2, false
	}),
}

// TestEveryInterleaving visits the first states of each deployment, or all states if NOTIFIER_TEST_FORCE is set. The machine kills
// workers at each fail point of the code, and at no other one.
func TestEveryInterleaving(t *testing.T) {
	t.Parallel()
	total, points := 0, make(map[failpoint.Point]bool)
	for _, c := range deployments {
		most := 20_000
		if hostile.Forced() {
			most = 0
		}
		s := newSearch(c, most)
		found := s.run()
		t.Logf("%9d states: %s, %d faults", len(s.keys), c.name, c.budget)
		if found != nil {
			t.Errorf("%s: %q is broken:\n%s", c.name, found.promise, s.story(found))
		}
		total += len(s.keys)
		maps.Copy(points, s.reached)
		runtime.GC() // the next search needs the memory
	}
	t.Logf("%9d states in all", total)
	testkit.EqualSlices(t, slices.Sorted(maps.Keys(points)), failPoints(t), "fail points at which a worker was killed")
}

// failPoints returns the fail points of the code.
func failPoints(t *testing.T) (named []failpoint.Point) {
	t.Helper()
	file := testkit.Must(parser.ParseFile(token.NewFileSet(), "../failpoint/doc.go", nil, 0))(t)
	ast.Inspect(file, func(node ast.Node) bool {
		if literal, is := node.(*ast.BasicLit); is && literal.Kind == token.STRING {
			named = append(named, failpoint.Point(testkit.Must(strconv.Unquote(literal.Value))(t)))
		}
		return true
	})
	slices.Sort(named)
	return named
}

// TestPlantedBugs finds the shortest way to what each planted bug breaks.
func TestPlantedBugs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		bug     bug
		with    *config
		promise string
		steps   []string
	}{
		{refundsInDoubt, with("refunds", func(c *config) { c.budget = 3 }), "a posted event keeps its slots", []string{
			"worker 1 receives event A",
			"worker 1 asks Redis about event A",
			"worker 1 posts event A",
			"event A becomes too old",
			"Slack posts event A, and the answer is lost",
			"worker 1 cannot look for the post of event A, which is too old",
			"worker 1 returns the slots of event A",
		}},
		{forgetsDoubt, with("forgets", func(c *config) { c.budget = 3 }), "no event is posted twice if workers may look for posts", []string{
			"worker 1 receives event A",
			"worker 1 asks Redis about event A",
			"worker 1 posts event A",
			"worker 1 is killed, and Slack posts event A",
			"the lease of event A in Redis ends",
			"worker 1 receives event A",
			"worker 1 asks Redis about event A",
			"worker 1 posts event A",
			"worker 1 is killed, and Slack posts event A",
		}},
		{beginsUnrecorded, with("begins unrecorded", func(c *config) { c.budget, c.paced = 3, true }), "no event is posted twice if workers may look for posts", []string{
			"worker 1 receives event A",
			"worker 1 asks Redis about event A",
			"worker 1 waits before it posts event A",
			"worker 1 begins to post event A",
			"worker 1 is killed, and Slack posts event A",
			"the lease of event A in Redis ends",
			"worker 1 receives event A",
			"worker 1 asks Redis about event A",
			"worker 1 posts event A",
			"worker 1 is killed, and Slack posts event A",
		}},
		{acksOwed, with("acknowledges what is owed", func(c *config) { c.budget = 3 }), "Redis has the end of each event that it has admitted", []string{
			"worker 1 receives event A",
			"worker 1 asks Redis about event A",
			"Redis is unavailable",
			"worker 1 posts event A",
			"Slack posts event A",
			"worker 1 cannot record event A now",
			"worker 1 acknowledges event A",
			"worker 1 is killed",
		}},
		{losesNak, with("loses a nak", func(c *config) { c.budget = 3 }), "without further faults every event ends", []string{
			"worker 1 receives event A",
			"worker 1 asks Redis about event A",
			"the channel of event A is busy",
			"worker 1 releases event A",
			"worker 1 cannot store event A in the room",
		}},
		{countsAgain, with("counts again", func(c *config) { c.budget, c.events, c.messages, c.folds = 2, 2, 1, true }), "each folded event counts once", []string{
			"worker 1 receives event A",
			"worker 1 asks Redis about event A",
			"worker 1 posts event A",
			"Slack posts event A",
			"worker 1 records event A",
			"worker 1 receives event B",
			"worker 1 asks Redis about event B",
		}},
		{losesUpdate, with("loses an update", func(c *config) {
			c.budget, c.events, c.messages, c.busy, c.folds, c.updates, c.faults = 1, 2, 1, false, true, true, kill
		}), "a message shows all events that are folded into it", []string{
			"worker 1 receives event A",
			"worker 1 asks Redis about event A",
			"worker 1 posts event A",
			"Slack posts event A",
			"worker 1 records event A",
			"worker 1 acknowledges event A",
			"worker 1 receives event B",
			"worker 1 asks Redis about event B",
			"worker 1 stores the update that shows event B",
			"worker 1 begins an update",
			"worker 1 reads the count",
			"worker 1 acknowledges event B",
			"worker 1 is killed at before-update",
		}},
		{postsUnkept, with("posts without the update", func(c *config) {
			c.budget, c.events, c.messages, c.busy, c.resolves, c.limit, c.updates = 1, 2, 1, false, 1, [2]uint8{2, 2}, true
		}), "the message of an event that is resolved shows that", []string{
			"worker 1 receives event A",
			"worker 1 asks Redis about event A",
			"worker 1 posts event A",
			"Slack posts event A",
			"worker 1 records event A",
			"worker 1 acknowledges event A",
			"worker 1 receives event B",
			"worker 1 asks Redis about event B",
			"worker 1 cannot store the update of event A in the room",
			"worker 1 posts event B",
			"Slack posts event B",
			"worker 1 records event B",
			"worker 1 acknowledges event B",
		}},
		{postsEnded, with("posts what has ended", func(c *config) {
			c.budget, c.messages, c.busy, c.revised, c.limit = 1, 1, false, true, [2]uint8{0, 1}
		}), "no worker posts an event that another worker has ended", []string{
			"an operator changes the limit",
			"worker 1 adopts the new limit",
			"worker 2 receives event A",
			"worker 2 asks Redis about event A",
			"the ack wait of event A is over for worker 2",
			"worker 1 receives event A",
			"worker 1 asks Redis about event A",
			"worker 1 finds no post of event A",
			"worker 2 acknowledges event A",
			"worker 1 posts event A",
		}},
		{acksBeforeMove, with("acknowledges", func(c *config) { c.budget = 3 }), "every event has an outcome", []string{
			"worker 1 receives event A",
			"worker 1 asks Redis about event A",
			"the channel of event A is busy",
			"worker 1 releases event A",
			"worker 1 is killed at after-release",
		}},
	} {
		c := *test.with
		c.bug = test.bug
		s := newSearch(&c, 0)
		found := s.run()
		if found == nil {
			t.Errorf("%s: nothing is broken, want %q", c.name, test.promise)
			continue
		}
		testkit.Equal(t, found.promise, test.promise, "%s: the broken promise", c.name)
		var steps []string
		for line := range strings.Lines(s.story(found)) {
			_, text, _ := strings.Cut(strings.TrimSpace(line), ". ")
			steps = append(steps, text)
		}
		testkit.EqualSlices(t, steps, test.steps, "%s: the story", c.name)
	}
}
