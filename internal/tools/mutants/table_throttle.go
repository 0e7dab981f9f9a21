package main

// ofThrottle are the bugs in internal/throttle.
var ofThrottle = []mutant{
	{
		name: "lost-reply-keeps-its-slots",
		bug:  "A delivery that was granted in a lost reply keeps its slots of deliveries under way.",
		file: "internal/throttle/recovery.go",
		old:  `lease.Request.Cost = call.requests[i].Cost`,
		new:  "",
		test: "./internal/throttle -run ^TestSlotsOfALostReply$",
	},
	{
		name: "lost-reply-without-doubt",
		bug:  "An event that may have been posted before is released as certainly not posted, when the reply to its decision was lost.",
		file: "internal/throttle/recovery.go",
		old:  `lease.InDoubt = lease.InDoubt || lease.Request.Attempted`,
		new:  `_ = lease.InDoubt || lease.Request.Attempted`,
		test: "./internal/throttle -run ^TestLimiterRedisThatAnswersNothing$",
	},
	{
		name: "delay-behind-a-leaky-bucket",
		bug:  "An event that waits for a leaky bucket comes back before the cost ahead of it has leaked.",
		file: "internal/algorithm/table.go",
		old:  `Frees: BySpacing,`,
		new:  `Frees: ByRate,`,
		test: "./internal/throttle/store -run ^TestDelaysOfEveryAlgorithm$",
	},
	{
		name: "deny-cache-after-a-refund",
		bug:  "The deny cache goes on denying after slots were returned.",
		file: "internal/throttle/denycache.go",
		old:  `d.cache.clear()`,
		new:  "",
		test: "./internal/throttle -run ^TestLimiterFull$",
	},
	{
		name: "deny-cache-and-guarantees",
		bug:  "A global limit that is full for others counts as full for a path with slots of its own.",
		file: "internal/throttle/store/bucket.go",
		old: `guaranteed() {
		key.Guarantee = r.guarantee`,
		new: `guaranteed() {
		key.Guarantee = ""`,
		test: "./internal/throttle -run ^TestLimiterFullForAllButAGuarantee$",
	},
	{
		name: "deny-cache-at-its-end",
		bug:  "The deny cache still denies at the moment at which the next slot opens.",
		file: "internal/expiring/expiring.go",
		old:  `found && !m.clock().Before(known.until)`,
		new:  `found && m.clock().After(known.until)`,
		test: "./internal/throttle -run ^TestDenyCache$",
	},
	{
		name: "deny-cache-from-a-large-cost",
		bug:  "The deny cache takes the denial of a large cost for that of any event.",
		file: "internal/throttle/denycache.go",
		old:  `c.ttl == 0 || cost != 1 || !d.Limit`,
		new:  `c.ttl == 0 || !d.Limit`,
		test: "./internal/throttle -run ^TestDenyCache$",
	},
	{
		name: "deny-cache-from-a-share",
		bug:  "A share of a limit that is full while Redis is unavailable counts as the whole limit.",
		file: "internal/throttle/denycache.go",
		old:  `if source == SourceRedis && decision.Verdict.IsDenial() {`,
		new:  `if decision.Verdict.IsDenial() {`,
		test: "./internal/throttle -run ^TestLimiterSharesOfEachAlgorithm$",
	},
	{
		name: "deny-cache-from-the-reply",
		bug:  "The deny cache counts from when the reply came, not from before the question left.",
		file: "internal/throttle/asker.go",
		old:  `a.answers.take(SourceRedis, asked, result.Decisions, requests)`,
		new:  `a.answers.take(SourceRedis, time.Now(), result.Decisions, requests)`,
		test: "./internal/throttle -run ^TestLimiterCountsADenialFromItsQuestion$",
	},
	{
		name: "deny-cache-hides-a-raise",
		bug:  "A raised limit stays full as long as the deny cache remembers the old one.",
		file: "internal/throttle/store/bucket.go",
		old:  `key := LimitKey{Path: node.Path, Key: node.Key, Limit: limit}`,
		new: `limit.Count = 0
	key := LimitKey{Path: node.Path, Key: node.Key, Limit: limit}`,
		test: "./internal/throttle -run ^TestLimiterRaisedLimitShowsAtOnce$",
	},
	{
		name: "deny-cache-in-flight",
		bug:  "The deny cache remembers that a limit of deliveries under way was full, though one may end at any time.",
		file: "internal/throttle/denycache.go",
		old:  `if c.ttl == 0 || cost != 1 || !d.Limit.Description().Firm() {`,
		new:  `if c.ttl == 0 || cost != 1 {`,
		test: "./internal/throttle -run ^TestLimiterRaisedLimitShowsAtOnce$",
	},
	{
		name: "doubt-lost-by-a-renewal",
		bug:  "The in-memory store forgets the doubt of a lease that was released in doubt and renewed by a holder that waits.",
		file: "internal/throttle/store/memory.go",
		old:  `r.inDoubt = r.inDoubt || d > 0 && lease.InDoubt`,
		new:  ``,
		test: "./internal/throttle/store -run TestConformance/^memory$/doubt:_kept_by_a_holder",
	},
	{
		name: "deny-cache-too-long",
		bug:  "The deny cache remembers a denial for longer than its time to live.",
		file: "internal/throttle/denycache.go",
		old:  `if d.Verdict == store.ExceedsCapacity || wait > c.ttl {`,
		new:  `if d.Verdict == store.ExceedsCapacity {`,
		test: "./internal/throttle -run ^TestDenyCache$",
	},
	{
		name: "deny-cache-without-shadow",
		bug:  "The deny cache drops an event that the shadow was not asked about.",
		file: "internal/throttle/denycache.go",
		old: `if shadowed == nil {
			return nil
		}
		d.metrics`,
		new: `if shadowed == nil {
			return denial
		}
		d.metrics`,
		test: "./internal/throttle -run ^TestLimiterFullInForceAndInTheShadow$",
	},
	{
		name: "functions-everywhere",
		bug:  "In a cluster the functions are loaded on every primary, so that one which is down keeps a worker from starting.",
		file: "internal/script/library.go",
		old:  `node, err := owner(ctx, client, key)`,
		new: `if cluster, isCluster := client.(*redis.ClusterClient); isCluster {
		err := cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
			if err := c.FunctionLoad(ctx, l.source).Err(); err != nil && !strings.Contains(err.Error(), "already exists") {
				return err
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	node, err := owner(ctx, client, key)`,
		test: "./internal/throttle -run ^TestFunctionsNeedTheOwnerAlone$",
	},
	{
		name: "gauge-of-a-limit-that-is-gone",
		bug:  "What was read for limits that are in force no more is shown.",
		file: "internal/throttle/usage.go",
		old:  "if u.tree != tree {\n\t\treturn\n\t}\n\tu.latest = nil",
		new:  "if tree == nil {\n\t\treturn\n\t}\n\tu.latest = nil",
		test: "./internal/throttle -run ^TestLimiterUsageMetrics$",
	},
	{
		name: "queue-never-left",
		bug:  "Those who had their turn keep their position in the queue.",
		file: "internal/throttle/asker.go",
		old:  `_ = a.o.Redis.Queues.Leave(ctx, leaving.requests)`,
		new:  `_ = leaving`,
		test: "./internal/throttle -run TestQueueKeepsTheOrder",
	},
	{
		name: "queue-overtaken",
		bug:  "Whoever comes while a slot is free gets it, whoever waits for it.",
		file: "internal/throttle/asker.go",
		old:  `if a.o.Forward || !slices.ContainsFunc(requests, func(r store.Request) bool { return r.StandsInQueue() || r.HasWaited }) {`,
		new:  `if a.o.Forward || len(requests) > 0 || slices.ContainsFunc(requests, store.Request.StandsInQueue) {`,
		test: "./internal/throttle -run TestQueueKeepsTheOrder",
	},
	{
		name: "lost-functions-stay-lost",
		bug:  "Functions that the server has lost are not loaded again.",
		file: "internal/script/library.go",
		old:  `if err == nil || !strings.Contains(err.Error(), missingFunction) {`,
		new:  `if err == nil || strings.Contains(err.Error(), missingFunction) {`,
		test: "./internal/throttle/store -run TestScripts/functions_may_be_flushed",
	},
	{
		name: "outage-not-told",
		bug:  "Redis is not told of what was admitted while it was unavailable.",
		file: "internal/throttle/grant.go",
		old:  `of.replay.rememberAll(unsynced)`,
		new:  "_ = unsynced",
		test: "./internal/throttle -run ^TestLimiterDecidesLocally$",
	},
	{
		name: "pair-not-announced",
		bug:  "What resolves a message that is on its way is taken for unpaired.",
		file: "internal/throttle/asker.go",
		old:  `err = a.o.Redis.Pairs.Announce(ctx, result.Decisions)`,
		new:  `err = a.o.Redis.Pairs.Announce(ctx, nil)`,
		test: "./internal/throttle -run TestLimiterPairs$",
	},
	{
		name: "pairs-of-neighbours",
		bug:  "A producer of new pairs pushes out the open pairs of others.",
		file: "internal/throttle/store/redis.go",
		old: `func (k keys) pairs(first string) string      { return k.key("pairs:" + first) }
func (k keys) pairsUntil(first string) string { return k.key("pairs:until:" + first) }`,
		new: `func (k keys) pairs(string) string            { return k.key("pairs:") }
func (k keys) pairsUntil(string) string       { return k.key("pairs:until:") }`,
		test: "./internal/throttle/store -run TestPairsAreBounded",
	},
	{
		name: "refund-by-new-limits",
		bug:  "Slots return to the limits in force, not to those that the event was evaluated by.",
		file: "internal/throttle/store/request.go",
		old:  `cmp.Or(l.tree, current)`,
		new:  `current`,
		test: "./internal/throttle/store -run TestConformance/^redis$/change:_slots_return_to_the_limits",
	},
	{
		name: "refused-log-asked-again",
		bug:  "Each event whose log Redis refuses costs a call.",
		file: "internal/throttle/asker.go",
		old:  `a.refused.Put(shared, err, time.Now().Add(refusedFor))`,
		new:  "",
		test: "./internal/throttle -run TestLimiterAsksOnceAboutWhatIsBroken",
	},
	{
		name: "refused-worker-acts",
		bug:  "A worker that Redis refuses from its start admits its share of limits that others have filled.",
		file: "internal/throttle/outage.go",
		old:  `refused := !o.answered && errors.Is(err, script.ErrForbidden)`,
		new:  `refused := o.answered && errors.Is(err, script.ErrForbidden)`,
		test: "./internal/throttle/store -run ^TestFunctionsNeedTwoRights$",
	},
	{
		name: "resolved-takes-a-slot",
		bug:  "A resolved event that was delivered while Redis was unavailable takes slots.",
		file: "internal/throttle/store/redis.go",
		old: `if a.Lease.Resolving || a.Lease.Request.Slotless {
			events = append(events, 0, 0)
			continue
		}`,
		new:  "",
		test: "./internal/throttle/store -run TestResolvedEventsTakeNoSlots",
	},
	{
		name: "room-of-neighbours",
		bug:  "The room is bounded for all categories together.",
		file: "internal/throttle/store/redis.go",
		old:  `func (k keys) room(first string) string { return k.key("room:" + first) }`,
		new:  `func (k keys) room(string) string { return k.key("room:") }`,
		test: "./internal/throttle/store -run TestDelays/eval/bound_of_each",
	},
	{
		name: "shadow-in-force",
		bug:  "The keys of the shadow are those of the limits in force.",
		file: "internal/throttle/store/encoding.go",
		old:  `inShadow = "shadow:"`,
		new:  `inShadow = ""`,
		test: "./internal/throttle/store -run ^TestShadowTouchesNothing$",
	},
	{
		name: "shadow-forgets-what-is-in-flight",
		bug:  "The shadow forgets that it has admitted an event while the event holds a slot there, and admits it once more.",
		file: "internal/throttle/store/routes.go",
		old:  `max(1, lease.Microseconds(), r.Shadow`,
		new:  `max(1, r.Shadow`,
		test: "./internal/throttle/store -run ^TestShadowKept$",
	},
	{
		name: "shadow-of-another-state",
		bug:  "What one state of the shadow has admitted the next one does not evaluate.",
		file: "internal/throttle/store/redis.go",
		old:  `fmt.Sprintf("%staken:%d:%d", inShadow, rules.Position.Generation, rules.Position.Revision)`,
		new:  `fmt.Sprintf("%staken:%d", inShadow, rules.Position.Generation)`,
		test: "./internal/throttle/store -run ^TestModel$ -rapid.checks=200 -rapid.nofailfile -rapid.shrinktime=1s",
	},
	{
		name: "share-above-the-limit",
		bug:  "While Redis is unavailable each instance has the whole limit.",
		file: "internal/throttle/store/memory_shares.go",
		old:  `divided[i].Count += max(free/by, min(e.Cost, free))`,
		new:  `divided[i].Count += free`,
		test: "./internal/throttle -run ^TestLimiterDecidesLocally$",
	},
	{
		name: "stale-counts-as-ready",
		bug:  "A worker that lacks newer limits for good counts as ready.",
		file: "internal/throttle/staleness.go",
		old:  `lags && (s.told || !s.wasCurrent)`,
		new:  `lags && !s.wasCurrent`,
		test: "./internal/throttle -run ^TestLimiterCannotRefresh$",
	},
	{
		name: "stale-not-refreshed",
		bug:  "A worker that is turned away does not look for newer limits.",
		file: "internal/throttle/staleness.go",
		old:  `if s.o.Refresh != nil {`,
		new:  `if s.o.Refresh == nil {`,
		test: "./internal/throttle -run ^TestLimiterRefreshesLimitsThatAreNotTheNewest$",
	},
	{
		name: "stale-pulls-on",
		bug:  "A worker that lacks newer limits goes on taking events.",
		file: "internal/throttle/outage.go",
		old:  `if state != unavailable && !blocked() {`,
		new:  `if state != unavailable {`,
		test: "./internal/throttle -run ^TestLimiterCannotRefresh$",
	},
	{
		name: "stale-ready-at-start",
		bug:  "A worker that starts with older limits than those in force counts as ready.",
		file: "internal/throttle/staleness.go",
		old:  `lags && (s.told || !s.wasCurrent)`,
		new:  `lags && s.told`,
		test: "./internal/throttle -run ^TestLimiterIsBehindFromTheStart$",
	},
	{
		name: "post-by-unconfirmed-limits",
		bug:  "A worker posts an admitted event although its limits were not confirmed lately.",
		file: "internal/throttle/mutes.go",
		old:  `if !m.staleness.confirmed(ConfirmedFor) {`,
		new:  `if false {`,
		test: "./internal/throttle -run ^TestCheckMuteAsksFirst$",
	},
	{
		name: "open-policy-breaks-a-mute",
		bug:  "While Redis is unavailable, the policy open sends muted events.",
		file: "internal/throttle/limiter.go",
		old:  `d.Verdict.IsDenial() && d.Muted == nil {`,
		new:  `d.Verdict.IsDenial() {`,
		test: "./internal/throttle -run ^TestMuteWithoutRedis$",
	},
	{
		name: "muted-event-takes-a-slot",
		bug:  "The script evaluates muted events.",
		file: "lua/evaluate.lua",
		old:  `if ask.cost == 0 or ask.is_muted then`,
		new:  `if ask.cost == 0 then`,
		test: "./internal/throttle/store -run ^TestConformance$",
	},
	{
		name: "stale-unnoticed-while-idle",
		bug:  "An idle worker does not compare its limits with those in force.",
		file: "internal/throttle/staleness.go",
		old: `if s.outage.isAnswering() {
			_ = s.compare(ctx) // the next tick tries again
		}`,
		new:  "",
		test: "./internal/throttle -run ^TestIdleLimiterNoticesNewerLimits$",
	},
	{
		name: "taken-in-spite-of-guarantees",
		bug:  "A denial by the guarantees of others is told as if all global slots were taken.",
		file: "internal/throttle/store/routes.go",
		old:  `guaranteed := d.Node.Path == "" && len(t.guarantees) > 0`,
		new:  `guaranteed := false`,
		test: "./internal/throttle/store -run ^TestTakenBefore$",
	},
	{
		name: "unpaired-while-it-fires",
		bug:  "A worker drops what resolves an event that it has just seen.",
		file: "internal/throttle/limiter.go",
		old:  `l.unpaired.see(requests)`,
		new:  "",
		test: "./internal/throttle -run TestLimiterUnpaired",
	},
	{
		name: "fastpath-in-spite-of-a-block",
		bug:  "What never fits is told to come later, where another limit is full.",
		file: "internal/throttle/store/routes.go",
		old:  `blocks := func(l limits.Limit) bool { return l.Count == 0 }`,
		new:  `blocks := func(l limits.Limit) bool { return l.Count < 0 }`,
		test: "./internal/throttle/store -run TestConformance/^redis$/what_never_fits_is_no_matter_of_time",
	},
	{
		name: "full-limits-line-each-second",
		bug:  "The log has a line each second about limits of one level that become full.",
		file: "internal/throttle/full_limits.go",
		old:  `now.Sub(lines.full) >= levelLineEvery`,
		new:  `now.Sub(lines.full) >= 0`,
		test: "./internal/throttle -run ^TestFullLimitsOfOneLevelShareLines$",
	},
	{
		name: "post-that-begins-unrecorded",
		bug:  "A worker posts an event that has waited while Redis takes it for waiting: after a kill another worker posts it again.",
		file: "internal/throttle/grant.go",
		old:  `g.grants.replay.setWaiting(&g.granted, *waits)`,
		new:  `g.grants.replay.setWaiting(&g.granted, true)`,
		test: "./internal/throttle -run ^TestGrantThatWaits$",
	},
}
