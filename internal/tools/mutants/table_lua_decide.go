package main

// ofDeciding are the bugs in decide.lua and in the files that only decide.lua includes.
var ofDeciding = []mutant{
	{
		name: "answer-outlives-an-admission",
		bug:  "Within a call an ask keeps its answer although slots were taken after it.",
		file: "lua/evaluate.lua",
		old:  `if view.evaluated_after ~= set.charges then`,
		new:  `if not view.evaluated_after then`,
		test: "./internal/throttle/store -run TestConformance/^redis$/a_batch_is_evaluated_in_its_order",
	},
	{
		name: "done-delivered-again",
		bug:  "A message that was delivered is delivered again when it comes again.",
		file: "lua/evaluate.lua",
		old:  `return finished(batch, event_key)`,
		new: `grant(batch, event_key, version)
    return constant_answer(batch, RECLAIMED)`,
		test: "./internal/throttle/store -run TestConformance/^redis$/a_redelivery_sees_a_lease",
	},
	{
		name: "doubt-forgotten",
		bug:  "A call that is repeated because its reply was lost does not hear that the event is in doubt.",
		file: "lua/evaluate.lua",
		old:  `grant(batch, doubt_of(event_key), '')`,
		new:  "",
		test: "./internal/throttle/store -run TestConformance/^redis$/doubt:_a_call_that_is_repeated",
	},
	{
		name: "duplicate-as-delivered",
		bug:  "Another message with the ID of a delivered event is reported as delivered.",
		file: "lua/evaluate.lua",
		old: `constant_answer(batch, DUPLICATE)
    end
  end
  if is_done then`,
		new: `constant_answer(batch, is_done and DONE or DUPLICATE)
    end
  end
  if is_done then`,
		test: "./internal/throttle/store -run ^TestRecordedHistory$ -history.duration=10s",
		tags: "histories",
	},
	{
		name: "decided-by-older-limits",
		bug:  "A worker with older limits decides although newer ones are in force.",
		file: "lua/decide.lua",
		old:  `newest[1] > generation or newest[1] == generation and newest[2] > revision`,
		new:  `false`,
		test: "./internal/throttle/store -run ^TestHistory$ -history.duration=10s",
	},
	{
		name: "duplicate-as-redelivery",
		bug:  "Another message with the ID of an admitted one is taken for its redelivery.",
		file: "lua/evaluate.lua",
		old:  `if not known or tonumber(known) ~= tonumber(version) then`,
		new:  `if not known then`,
		test: "./internal/throttle/store -run TestConformance/^redis$/another_category_does_not_make",
	},
	{
		name: "generation-ignored",
		bug:  "Limits of a bucket that was recreated count as older than those of the one before.",
		file: "lua/decide.lua",
		old:  `newest[1] > generation or newest[1] == generation and newest[2] > revision`,
		new:  `newest[2] > revision`,
		test: "./internal/throttle/store -run ^TestOlderLimitsAreTurnedAway$",
	},
	{
		name: "guarantee-fits-whatever-others-have",
		bug:  "A cost above what the guarantees of others leave is denied in the place of never fitting.",
		file: "lua/lib/buckets.lua",
		old:  `others = cost > own and bucket.guarantees.slots - own or 0`,
		new:  `others = own * 0`,
		test: "./internal/throttle/store -run TestConformance/^redis$/guarantee:_a_cost_above_what_others_leave",
	},
	{
		name: "lapsed-lease-evaluated-anew",
		bug:  "An admitted event whose lease has lapsed takes slots again.",
		file: "lua/decide.lua",
		old:  `elseif is_done or (lease_end and lease_end > now - retention) then`,
		new:  `elseif is_done or (lease_end and lease_end > now) then`,
		test: "./internal/throttle/store -run TestConformance/^redis$/a_redelivery_sees_a_lease",
	},
	{
		name: "lease-taken-while-held",
		bug:  "A redelivery takes over a lease that somebody else still holds.",
		file: "lua/evaluate.lua",
		old: `elseif is_held(lease_end, now, batch.lease) then
    return answer(batch, LEASED, 0, math.ceil(lease_end - now))`,
		new:  "",
		test: "./internal/throttle/store -run TestConformance/^redis$/a_redelivery_sees_a_lease",
	},
	{
		name: "lease-without-expiry",
		bug:  "The key of the leases has no expiry.",
		file: "lua/decide.lua",
		old:  `add_for(leased_key, leases, records_kept)`,
		new:  `in_pieces('ZADD', leased_key, leases)`,
		test: "./internal/throttle/store -run TestScripts/every_key_expires",
	},
	{
		name: "nonce-ignored",
		bug:  "A call that is repeated because its reply was lost is taken for another one.",
		file: "lua/evaluate.lua",
		old:  `batch.ran_before = at and at > batch.now - NONCE_KEPT and at or false`,
		new:  `batch.ran_before = false`,
		test: "./internal/throttle/store -run TestConformance/^redis$/a_repeated_call_has_the_same_answer",
	},
	{
		name: "parent-charged-first",
		bug:  "A level takes its slot before those below it are asked, and keeps it when one of them denies.",
		file: "lua/evaluate.lua",
		old: `if view.evaluated_after ~= set.charges then
    view.denied, view.evaluated_after = denial(batch, view), set.charges
  end
  if view.denied then
    return view.denied
  end`,
		new: "",
		more: []edit{
			{
				file: "lua/evaluate.lua",
				old:  `bucket.algorithm.take(bucket, event)`,
				new: `local denied = denial(batch, { path = { bucket }, cost = view.cost, guarantee = view.guarantee, exceeds = view.exceeds })
    if denied then
      return denied
    end
    bucket.algorithm.take(bucket, event)`,
			},
		},
		test: "./internal/throttle/store -run TestConformance/^redis$/an_event_must_fit_in_every_node",
	},
	{
		name: "revision-unwritten-on-denial",
		bug:  "A call that grants nothing does not say which revision it was made with.",
		file: "lua/decide.lua",
		old:  `is_newer and event_count > 0`,
		new:  `is_newer and #batch.granted > 0`,
		test: "./internal/throttle/store -run ^TestNewerLimitsAreKnownFromADenial$",
	},
	{
		name: "revision-written-by-a-look",
		bug:  "A call about no event puts the limits that it was made with in force.",
		file: "lua/decide.lua",
		old:  `is_newer and event_count > 0`,
		new:  `is_newer`,
		test: "./internal/throttle/store -run ^TestLimitsArePutInForce$",
	},
	{
		name: "shadow-counts-twice",
		bug:  "An event that is asked for again takes a second slot in the shadow.",
		file: "lua/evaluate.lua",
		old:  `if at and at > batch.now - batch.shadow_kept then`,
		new:  `if at and at > batch.now then`,
		test: "./internal/throttle/store -run TestConformance/^redis$/shadow:_what_is_denied_in_force",
	},
	{
		name: "shadow-denies",
		bug:  "What the shadow denies is denied.",
		file: "lua/decide.lua",
		old:  `shadow_reply[index] = evaluate_in_shadow(batch, event_key, version, ask.shadow)`,
		new: `shadow_reply[index] = evaluate_in_shadow(batch, event_key, version, ask.shadow)
        reply[3 + index] = shadow_reply[index] > 0 and shadow_reply[index] or reply[3 + index]`,
		test: "./internal/throttle/store -run TestConformance/^redis$/shadow:_it_reports",
	},
	{
		name: "stale-revision-accepted",
		bug:  "A call with limits of an older revision is evaluated by them.",
		file: "lua/decide.lua",
		old:  `newest[1] > generation or newest[1] == generation and newest[2] > revision`,
		new:  `newest[1] > generation`,
		test: "./internal/throttle/store -run ^TestOlderLimitsAreTurnedAway$",
	},
	{
		name: "time-of-admission-lost",
		bug:  "The time of an admission is not kept, so that only logs get their slots back.",
		file: "lua/decide.lua",
		old:  `put_for(taken_key, batch.timed, milliseconds(lease + retention))`,
		new:  "",
		test: "./internal/throttle/store -run TestConformance/^redis$/limits_of_all_algorithms",
	},
	{
		name: "fastpath-denied-by-any-log",
		bug:  "A log denies a whole batch, though it is not on all paths.",
		file: "lua/fastpath.lua",
		old:  `if l > 1 or not first_is_common then`,
		new:  `if l > 1 then`,
		test: "./internal/throttle/store -run TestConformance/^redis$/a_full_log_denies_those_alone",
	},
	{
		name: "fastpath-denied-by-looks",
		bug:  "A batch is denied by a log that holds what has left its windows.",
		file: "lua/fastpath.lua",
		old:  `algorithms.log.read(log)`,
		new: `local looks = log.room
    algorithms.log.read(log)
    log.room = looks
    log.limits[1].stored = math.max(log.limits[1].stored, log.limits[1].count - looks)`,
		test: "./internal/throttle/store -run TestConformance/^redis$/what_has_left_the_windows_makes_room",
	},
	{
		name: "fastpath-drops-a-name-in-use",
		bug:  "An event of a batch takes no slot where an older one has its name.",
		file: "lua/fastpath.lua",
		old:  `if other == log then`,
		new:  `if other == batch then`,
		test: "./internal/throttle/store -run TestConformance/^redis$/derived_IDs_of_a_stream_that_was_made_anew_come",
	},
	{
		name: "fastpath-forgets-what-is-known",
		bug:  "A batch is answered as one, though something is known of one of its events.",
		file: "lua/fastpath.lua",
		old:  `if known[batch.values[batch.before_event_keys + index]] then`,
		new:  `if known[batch.count] then`,
		test: "./internal/throttle/store -run TestConformance/^redis$/an_event_that_is_known_does_not_share",
	},
	{
		name: "fastpath-one-event-twice",
		bug:  "An event that comes twice in a batch takes two slots.",
		file: "lua/fastpath.lua",
		old:  `if seen[event_key] then`,
		new:  `if seen[index] then`,
		test: "./internal/throttle/store -run TestConformance/^redis$/one_that_comes_twice_takes_one_slot,_though",
	},
	{
		name: "fastpath-one-too-many",
		bug:  "A batch is admitted as one that needs one slot more than a log has.",
		file: "lua/fastpath.lua",
		old:  `if log.taken > log.room then`,
		new:  `if log.taken > log.room + 1 then`,
		test: "./internal/throttle/store -run TestConformance/^redis$/a_full_log_denies_those_alone",
	},
	{
		name: "fastpath-shadow-counts-twice",
		bug:  "An event that is asked for again takes a second slot in the shadow, when its batch is evaluated as one.",
		file: "lua/fastpath.lua",
		old:  `if shadow_taken[message] then`,
		new:  `if shadow_taken[index] then`,
		test: "./internal/throttle/store -run TestConformance/^redis$/shadow:_what_the_root_denies_in_force",
	},
	{
		name: "fastpath-shadow-names-another-limit",
		bug:  "A batch that the shadow denies is reported with another limit.",
		file: "lua/fastpath.lua",
		old:  `first_limit + limit.index - 1`,
		new:  `limit.index`,
		test: "./internal/throttle/store -run TestConformance/^redis$/shadow:_a_batch_is_denied_by_its_own_limit",
	},
	{
		name: "fastpath-without-trimming",
		bug:  "A log keeps what has left its windows, when a batch is admitted as one.",
		file: "lua/fastpath.lua",
		old:  `algorithms.log.trim(log, batch.trim)`,
		new:  `integer(log.now)`,
		test: "./internal/throttle/store -run ^TestTailsDoNotCount$",
	},
	{
		name: "worker-clock",
		bug:  "The time of a decision is the worker's, not the server's.",
		file: "lua/decide.lua",
		old:  `local now, ran_ahead = deployment_time(calls_key)`,
		new: `local now, ran_ahead = deployment_time(calls_key)
now = tonumber(ARGV[#ARGV])`,
		more: []edit{
			{
				file: "internal/throttle/store/encoding.go",
				old:  `arguments = append(append(arguments, eventKeys...), versions...)`,
				new:  `arguments = append(append(append(arguments, eventKeys...), versions...), time.Now().UnixMicro())`,
			},
		},
		test: "./internal/throttle/store -run TestConformance/^redis$/an_answer_says_when",
	},
}
