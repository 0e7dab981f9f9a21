package livelimits

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The log lists the rules in the form of the settings, up to a bound.
func TestLimitTexts(t *testing.T) {
	t.Parallel()
	texts := func(rules string, guarantees ...limits.Guarantee) []string {
		t.Helper()
		parsed, errs := limits.ParseRules(rules)
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		tree := testkit.Must(limits.NewTree(limits.Plan{
			Global: testkit.Must(limits.Parse("100/30m"))(t), Category: testkit.Must(limits.Parse("10/30m+3/1m"))(t),
			Rules: parsed, Guarantees: guarantees,
		}))(t)
		return limitTexts(tree)
	}
	testkit.EqualSlices(t, texts("payments.*=none", limits.Guarantee{Path: "security", Slots: 5}),
		[]string{"global=100/30m", "category=10/30m+3/1m", "payments.*=none", "security=5 guaranteed"}, "rules")

	var many []string
	for i := range mostLogged {
		many = append(many, fmt.Sprintf("service%d=1/1m", i))
	}
	bounded := texts(strings.Join(many, ","))
	testkit.Equal(t, len(bounded), mostLogged+1, "texts")
	testkit.Equal(t, bounded[mostLogged], "and 2 more", "the last text")
}

// A digest shows the duration of a limit. The end of a limit has no author.
func TestDigestOfEnds(t *testing.T) {
	t.Parallel()
	at := time.Now()
	change := overrides.Change{Name: overrides.Name{Pattern: "payments"}, Value: "5/1h", By: "ann", Changed: at}
	want := summary.Change{At: at, Limit: "payments", Value: "5/1h", By: "ann"}
	testkit.Equal(t, digestChange(change), want, "without an end")
	change.Until, want.Value = at.Add(2*time.Hour), "5/1h for 2h"
	testkit.Equal(t, digestChange(change), want, "with an end")
	change.Until, change.Ended, want.Value, want.By = time.Time{}, 7, "5/1h again", ""
	testkit.Equal(t, digestChange(change), want, "an end")
	change.Value, want.Value = "", ""
	testkit.Equal(t, digestChange(change), want, "an end after which nothing is set")
}

// TestApplyLooksAgain has a bad live limit and a history that cannot be read for a moment. The limit before it is in force afterwards.
func TestApplyLooksAgain(t *testing.T) {
	t.Parallel()
	failing := errors.New("no reply")
	earlier := func(limits.LiveLevel) ([]string, error) { return []string{"7/1h"}, failing }
	adopted := 0
	log := testkit.NewLog(t).Logger()
	l := &Live{
		live: limits.NewLive(limits.Plan{}, nil, earlier, log), logger: log, readable: make(chan struct{}),
		adopt: func(rules limits.Ruleset) {
			adopted++
			testkit.Equal(t, rules.Tree.Path("a")[0].Limits.String(), "7/1h", "limit in force")
		},
	}
	s := overrides.Snapshot{Generation: 1, Revision: 2, Entries: []overrides.Change{{Name: overrides.Name{Pattern: "a"}, Value: "x", Revision: 2}}}
	testkit.Fails(t, "the first attempt", l.apply(s), limits.ErrEarlier, "no reply")
	testkit.Equal(t, l.Applied(), nil, "applied")
	failing = nil
	testkit.NoError(t, l.apply(s))
	testkit.NoError(t, l.Ready())
	testkit.Equal(t, adopted, 1, "rulesets in force")
}

// silentBucket is a JetStream that does not answer about streams before it is opened.
type silentBucket struct {
	jetstream.JetStream
	opened chan struct{}
}

func (s silentBucket) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	select {
	case <-s.opened:
		return s.JetStream.Stream(ctx, name)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A worker is not ready before it has read the bucket, however long that takes. It is ready if there is certainly no bucket.
func TestNotReadyBeforeTheBucketIsRead(t *testing.T) {
	t.Parallel()
	testkit.Each(t, map[string]bool{"a bucket": true, "no bucket": false}, func(t *testing.T, exists bool) {
		log := testkit.NewLog(t)
		js := silentBucket{servertest.JetStream(t, servertest.StartNATS(t).URL), make(chan struct{})}
		adopted := make(chan limits.Ruleset, 1)
		var settings config.Config
		settings.Limits.Bucket, settings.NATS.Provision = "limits", exists
		live := New(Options{
			Settings: settings, JetStream: js, Logger: log.Logger(), Adopt: func(rules limits.Ruleset) { adopted <- rules },
			InForce: func(context.Context) (limits.Position, time.Time, error) { return limits.Position{}, time.Time{}, nil },
		})
		ctx, stop := context.WithCancel(testkit.Context(t))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			live.Run(ctx)
		}()
		defer func() {
			stop()
			<-ended
		}()
		readable := make(chan error, 1)
		go func() { readable <- live.AwaitReadable(ctx) }()
		testkit.Eventually(t, "the worker waits", func() bool { return len(log.Lines("live limits are unreadable: pulling no events")) == 1 })
		testkit.Fails(t, "ready before the bucket is read", live.Ready(), nil, "the live limits have not been read: ")
		close(js.opened)
		testkit.NoError(t, <-readable)
		testkit.NoError(t, live.Ready())
		testkit.Equal(t, len(adopted) == 1, exists, "live limits are in force")
	})
}

// A worker whose bucket is deleted keeps the limits that it knows, stays ready, and reports the loss.
func TestFailingWithoutItsBucket(t *testing.T) {
	t.Parallel()
	js := servertest.JetStream(t, servertest.StartNATS(t).URL)
	ctx := testkit.Context(t)
	testkit.Must(js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "limits", History: 64}))(t)
	live := New(Options{
		Settings: config.Config{Limits: config.Limits{Bucket: "limits"}}, JetStream: js, Logger: testkit.NewLog(t).Logger(), Adopt: func(limits.Ruleset) {},
		InForce: func(context.Context) (limits.Position, time.Time, error) { return limits.Position{}, time.Time{}, nil },
	})
	testkit.NoError(t, live.Failing())
	testkit.Run(t, live.Run)
	testkit.NoError(t, live.Refresh(ctx))
	testkit.NoError(t, live.Failing())
	testkit.NoError(t, js.DeleteKeyValue(ctx, "limits"))
	testkit.Eventually(t, "the loss is reported", func() bool { return errors.Is(live.Failing(), overrides.ErrNoBucket) })
	testkit.NoError(t, live.Ready())
}

// TestRefreshOfAnUnreadableLimit reads a bucket whose newest state cannot be in force here, so the limits here are not the newest ones.
func TestRefreshOfAnUnreadableLimit(t *testing.T) {
	t.Parallel()
	js := servertest.JetStream(t, servertest.StartNATS(t).URL)
	ctx := testkit.Context(t)
	bucket := testkit.Must(js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "limits", History: 64}))(t)
	change := nats.NewMsg("$KV." + bucket.Bucket() + ".payments")
	change.Data = []byte("5 in an hour")
	trusted.Mark(change.Header)
	testkit.Must(js.PublishMsg(ctx, change))(t)
	adopted := make(chan limits.Ruleset, 1)
	live := New(Options{
		Settings: config.Config{Limits: config.Limits{Bucket: bucket.Bucket()}}, JetStream: js, Logger: testkit.NewLog(t).Logger(),
		Adopt:   func(rules limits.Ruleset) { adopted <- rules },
		InForce: func(context.Context) (limits.Position, time.Time, error) { return limits.Position{}, time.Time{}, nil },
	})
	testkit.Run(t, live.Run)
	testkit.Fails(t, "refreshing an unreadable limit", live.Refresh(ctx), nil, "the live limit of payments is not readable")
	testkit.NoError(t, bucket.Delete(ctx, "payments"))
	testkit.NoError(t, live.Refresh(ctx))
	testkit.Equal(t, (<-adopted).Position.Revision, 2, "revision in force")
}

// conflicting are settings whose shadow limit has fewer slots than are guaranteed.
func conflicting(t *testing.T) config.Config {
	t.Helper()
	return config.Config{Limits: config.Limits{
		Bucket: "limits", Global: testkit.Must(limits.Parse("100/30m"))(t), Guarantees: []limits.Guarantee{{Path: "security", Slots: 20}},
		ShadowLimits: []limits.Override{{Level: limits.LevelGlobal, Limits: testkit.Must(limits.Parse("10/30m"))(t)}},
	}}
}

// TestRefreshOfConflictingLimits has limits that conflict. The previous ones stay in force, so the limits here are not the newest ones.
func TestRefreshOfConflictingLimits(t *testing.T) {
	t.Parallel()
	js := servertest.JetStream(t, servertest.StartNATS(t).URL)
	testkit.Must(js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "limits", History: 64}))(t)
	live := New(Options{
		Settings: conflicting(t), JetStream: js, Logger: testkit.NewLog(t).Logger(),
		InForce: func(context.Context) (limits.Position, time.Time, error) { return limits.Position{}, time.Time{}, nil },
	})
	testkit.Run(t, live.Run)
	testkit.Fails(t, "refreshing conflicting limits", live.Refresh(testkit.Context(t)), errConflict)
	testkit.NoError(t, live.Ready())
	testkit.Fails(t, "failing", live.Failing(), errConflict)
}

// TestUnreadableLimitThatIsGone deletes an unreadable live limit. The remaining limits conflict, so the previous ones stay in force.
func TestUnreadableLimitThatIsGone(t *testing.T) {
	t.Parallel()
	log := testkit.NewLog(t)
	live := New(Options{Settings: conflicting(t), JetStream: servertest.JetStream(t, servertest.StartNATS(t).URL), Logger: log.Logger()})
	testkit.NoError(t, live.apply(overrides.Snapshot{Revision: 1, Entries: []overrides.Change{{Name: overrides.Name{Pattern: "payments"}, Value: "5 in an hour", Revision: 1}}}))
	testkit.Fails(t, "ready with an unreadable limit", live.Ready(), nil, "the live limit of payments is not readable")
	testkit.NoError(t, live.apply(overrides.Snapshot{Revision: 2}))
	log.WantCount(t, 1, "live limits conflict; keeping the previous ones")
	testkit.NoError(t, live.Ready())
}

// Two mutes are one attribute of the log: readers of JSON keep only one of two members with the same name.
func TestLogOfMutes(t *testing.T) {
	t.Parallel()
	log := testkit.NewLog(t)
	tree := testkit.Must(limits.NewTree(limits.Plan{}))(t)
	logLimits(log.Logger(), limits.Ruleset{Tree: tree, Mutes: []*limits.Mute{{Path: "orders"}, {Path: "payments"}}}, 0)
	log.WantCount(t, 1, `muted="[orders payments]"`)
}
