package main

// ofAlgorithms are the bugs in lua/algorithms.
var ofAlgorithms = []mutant{
	{
		name: "soon-enough-for-one-slot",
		bug:  "A full sliding log denies an event of several slots until there is room for one.",
		file: "lua/algorithms/log.lua",
		old:  `local leaving = cost + limit.stored`,
		new:  `local leaving = 1 + limit.stored`,
		test: "./internal/throttle/store -run ^TestRecordedHistory$ -history.duration=10s",
		tags: "histories",
	},
	{
		name: "counter-forgets-the-window-before",
		bug:  "A sliding counter counts its current window alone.",
		file: "lua/algorithms/counter.lua",
		old: `elseif state[1] == start - bucket.limit.window then
    bucket.previous = state[2]`,
		new:  "",
		test: "./internal/throttle/store -run TestConformance/^redis$/counter:_the_window_before",
	},
	{
		name: "counter-weighs-the-window-whole",
		bug:  "A sliding counter counts all of the window before, whatever its share.",
		file: "lua/algorithms/counter.lua",
		old:  `return slots * (window - math.max(0, elapsed)) / window`,
		new:  `return elapsed < window and slots or 0`,
		test: "./internal/throttle/store -run TestConformance/^redis$/counter:_the_window_before",
	},
	{
		name: "fixed-refund-into-the-next",
		bug:  "A slot of a fixed window that is over is returned to the next one.",
		file: "lua/algorithms/fixed.lua",
		old:  `if event.taken >= bucket.start then`,
		new:  `if event.taken then`,
		test: "./internal/throttle/store -run TestConformance/^redis$/fixed:_slots_are_returned",
	},
	{
		name: "fixed-starts-with-an-event",
		bug:  "A fixed window starts with its first event, not by the clock.",
		file: "lua/algorithms/fixed.lua",
		old:  `if state and state[1] >= start and state[1] <= bucket.now + TOLERANCE then`,
		new: `bucket.start = bucket.now
  if state and state[1] > bucket.now - bucket.limit.window and state[1] <= bucket.now + TOLERANCE then`,
		test: "./internal/throttle/store -run TestConformance/^redis$/fixed:_each_window_has_its_count",
	},
	{
		name: "guarantee-above-the-total",
		bug:  "A path with slots of its own left goes above the global limit.",
		file: "lua/algorithms/log.lua",
		old:  `return used + cost <= limit.count`,
		new:  `return true`,
		test: "./internal/throttle/store -run TestConformance/^redis$/guarantee:_not_above_a_limit_that_was_lowered",
	},
	{
		name: "guarantee-lent-out",
		bug:  "Slots of a guarantee that are not used are lent to others.",
		file: "lua/algorithms/log.lua",
		old:  `return used + cost + reserved - own <= limit.count`,
		new:  `return used + cost <= limit.count`,
		test: "./internal/throttle/store -run TestConformance/^redis$/guarantee:_others_never_take_its_slots",
	},
	{
		name: "guarantee-not-reserved",
		bug:  "Of several guarantees only the last one is counted in what is reserved.",
		file: "lua/algorithms/log.lua",
		old:  `limit.reserved = limit.reserved + math.max(`,
		new:  `limit.reserved = math.max(`,
		test: "./internal/throttle/store -run TestConformance/^redis$/guarantee:_others_wait_for_a_slot_of_others",
	},
	{
		name: "guarantee-reserved-after-use",
		bug:  "What a guarantee has used stays reserved for it.",
		file: "lua/algorithms/log.lua",
		old:  `+ math.max(0, guarantee.slots - limit.taken[g])`,
		new:  `+ guarantee.slots`,
		test: "./internal/throttle/store -run TestConformance/^redis$/guarantee:_others_wait_for_a_slot_of_others",
	},
	{
		name: "guarantee-waits-as-without",
		bug:  "The next slot is computed as if there were no guarantees.",
		file: "lua/algorithms/log.lua",
		old: `if #bucket.guarantees == 0 then
        return limit`,
		new: `if true then
        return limit`,
		test: "./internal/throttle/store -run TestConformance/^redis$/guarantee:_others_wait_for_a_slot_of_others",
	},
	{
		name: "inflight-shorter-than-the-lease",
		bug:  "The slot of a delivery under way comes back while its lease still holds.",
		file: "lua/algorithms/inflight.lua",
		old:  `math.max(bucket.limit.window, bucket.lease)`,
		new:  `bucket.limit.window`,
		test: "./internal/throttle/store -run TestConformance/^redis$/inflight:_no_slot_comes_back",
	},
	{
		name: "leaky-refund-of-an-older-slot",
		bug:  "Returning an older slot of a leaky bucket lets the next event come at once.",
		file: "lua/algorithms/leaky.lua",
		old:  `if event.taken == bucket.last then`,
		new:  `if event.taken <= bucket.last then`,
		test: "./internal/throttle/store -run TestConformance/^redis$/leaky:_the_latest_slot",
	},
	{
		name: "leaky-spacing-rounded-down",
		bug:  "The spacing of a leaky bucket is rounded down to whole microseconds.",
		file: "lua/algorithms/leaky.lua",
		old:  `math.ceil(cost * remainder / count)`,
		new:  `math.floor(cost * remainder / count)`,
		test: "./internal/throttle/store -run TestConformance/^redis$/leaky:_a_cost_takes",
	},
	{
		name: "log-clock-ahead-blocks",
		bug:  "Slots that a clock had left far ahead count for ever.",
		file: "lua/algorithms/log.lua",
		old:  `limit.stored = redis.call('ZCOUNT', bucket.key, from, bucket.latest)`,
		new:  `limit.stored = redis.call('ZCOUNT', bucket.key, from, '+inf')`,
		more: []edit{
			{
				file: "lua/algorithms/log.lua",
				old:  `limit.taken[g] = redis.call('ZCOUNT', guarantee.key, from, bucket.latest)`,
				new:  `limit.taken[g] = redis.call('ZCOUNT', guarantee.key, from, '+inf')`,
			},
		},
		test: "./internal/throttle/store -run TestConformance/^redis$/a_clock_that_was_far_ahead",
	},
	{
		name: "log-cost-is-one",
		bug:  "An event of any cost takes one slot of a log.",
		file: "lua/algorithms/log.lua",
		old:  `for slot = 2, event.cost do`,
		new:  `for slot = 2, 1 do`,
		more: []edit{
			{
				file: "lua/algorithms/log.lua",
				old:  `bucket.room - event.cost, bucket.taken_now + event.cost`,
				new:  `bucket.room - 1, bucket.taken_now + 1`,
			},
		},
		test: "./internal/throttle/store -run TestConformance/^redis$/a_cost_takes_that_many_slots",
	},
	{
		name: "log-member-of-time",
		bug:  "A member of a log is made of the time in the place of the ID, so that two events of one call share it.",
		file: "lua/algorithms/log.lua",
		old:  `members[n + 1], members[n + 2] = time, event.name`,
		new:  `members[n + 1], members[n + 2] = time, time`,
		more: []edit{
			{
				file: "lua/algorithms/log.lua",
				old:  `members[n + 2 * slot] = time, slot_member(event.name, slot)`,
				new:  `members[n + 2 * slot] = time, slot_member(time, slot)`,
			},
		},
		test: "./internal/throttle/store -run ^TestLogMembers$",
	},
	{
		name: "log-one-too-few",
		bug:  "A sliding log denies the last slot of its limit.",
		file: "lua/algorithms/log.lua",
		old:  `return used + cost + reserved - own <= limit.count`,
		new:  `return used + cost + reserved - own < limit.count`,
		more: []edit{
			{file: "lua/algorithms/log.lua", old: `if cost <= bucket.room then`, new: `if cost < bucket.room then`},
		},
		test: "./internal/throttle/store -run TestConformance/^redis$/a_limit_is_reached_exactly",
	},
	{
		name: "log-one-too-many",
		bug:  "A sliding log admits one slot more than its limit has.",
		file: "lua/algorithms/log.lua",
		old:  `return used + cost + reserved - own <= limit.count`,
		new:  `return used + cost + reserved - own <= limit.count + 1`,
		test: "./internal/throttle/store -run TestConformance/^redis$/a_limit_is_reached_exactly",
	},
	{
		name: "log-one-too-many-in-simulation",
		bug:  "A sliding log without guarantees admits one slot more than its limit has.",
		file: "lua/algorithms/log.lua",
		old:  `if cost <= bucket.room then`,
		new:  `if cost <= bucket.room + 1 then`,
		test: "./internal/testing/simulation -run ^TestSimulation$",
	},
	{
		name: "log-readding-moves-time",
		bug:  "Adding a name that a log has already moves its time.",
		file: "lua/algorithms/log.lua",
		old:  `redis.call('ZADD', set.key, 'NX', unpack(`,
		new:  `redis.call('ZADD', set.key, unpack(`,
		test: "./internal/throttle/store -run TestConformance/^redis$/a_name_that_an_older_event_has_left_behind",
	},
	{
		name: "log-refund-leaves-guarantee",
		bug:  "A returned slot of a guarantee stays taken in its own log.",
		file: "lua/algorithms/log.lua",
		old: `local guarantee = bucket.guarantees[event.guarantee]
  if guarantee then
    remove(guarantee.key)
  end`,
		new:  "",
		test: "./internal/throttle/store -run TestConformance/^redis$/guarantee:_a_returned_slot_goes_back",
	},
	{
		name: "log-window-edge",
		bug:  "A slot still counts at the very moment at which it leaves the window.",
		file: "lua/algorithms/log.lua",
		old:  `local from = '(' .. integer(bucket.now - limit.window)`,
		new:  `local from = integer(bucket.now - limit.window)`,
		test: "./internal/throttle/store -run TestConformance/^redis$/the_next_slot_opens_at_the_time",
	},
	{
		name: "log-without-expiry",
		bug:  "The key of a log has no expiry.",
		file: "lua/algorithms/log.lua",
		old:  `redis.call('PEXPIRE', set.key, milliseconds(kept))`,
		new:  "",
		test: "./internal/throttle/store -run TestScripts/every_key_expires",
	},
	{
		name: "token-cost-is-one",
		bug:  "An event of any cost takes one token.",
		file: "lua/algorithms/token.lua",
		old:  `take_at(bucket, bucket.now, event.cost)`,
		new:  `take_at(bucket, bucket.now, 1)`,
		test: "./internal/throttle/store -run TestConformance/^redis$/token:_times_that_are_no_whole",
	},
	{
		name: "token-refund-after-full",
		bug:  "A token is returned to a bucket that has been full since it was taken.",
		file: "lua/algorithms/token.lua",
		old: `if event.taken < bucket.full then
    return
  end`,
		new:  "",
		test: "./internal/throttle/store -run TestConformance/^redis$/token:_tokens_are_returned",
	},
	{
		name: "token-refund-beyond-full",
		bug:  "A token is returned whole to a bucket that has nearly been full since it was taken.",
		file: "lua/algorithms/token.lua",
		old: `if low.at > event.taken then
      returned = math.min(returned, low.missing)
    end`,
		new:  "",
		test: "./internal/throttle/store -run TestConformance/^redis$/token:_a_returned_token",
	},
	{
		name: "token-wait-rounded-down",
		bug:  "The time of a token's next slot is rounded down to a microsecond before it.",
		file: "lua/algorithms/token.lua",
		old: `if elapsed * count < needed then
      elapsed = elapsed + 1 -- corrects rounding`,
		new: `if elapsed * count > needed then
      elapsed = elapsed - 1`,
		test: "./internal/throttle/store -run TestConformance/^redis$/token:_times_that_are_no_whole",
	},
	{
		name: "token-debt-for-ever",
		bug:  "A token bucket that got smaller promises its next slot later than its key expires.",
		file: "lua/algorithms/token.lua",
		old:  `math.min(math.max(bucket.since, now) + elapsed, bucket.since + window) - now`,
		new:  `math.max(bucket.since, now) + elapsed - now`,
		test: "./internal/throttle/store -run TestConformance/^redis$/change:_an_emptied_token_bucket",
	},
	{
		name: "token-without-bound",
		bug:  "A token bucket saves tokens beyond its burst while nothing comes.",
		file: "lua/algorithms/token.lua",
		old: `if owed <= 0 then
    bucket.full, bucket.since, bucket.owed, bucket.lows = at, at, 0, {}
    return
  end`,
		new:  "",
		test: "./internal/throttle/store -run TestConformance/^redis$/token:_a_smaller_burst",
	},
}
