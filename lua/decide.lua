-- decide.lua: judges a batch of events against every limit on their paths, and leases the admitted ones.
--
-- An event is recorded in all logs of its path with one time, or in none. The script reads and decides everything
-- first and writes last. It is idempotent by event: an ID that is leased or done takes no second slot, and a call
-- that is repeated because its reply was lost gets the same answer.
--
-- KEYS
--   1  calls    sorted set: nonce of a call that granted something -> its time. The newest is the time below which
--               this deployment's clock never goes.
--   2  leased   sorted set: record -> end of the lease of whoever is delivering the event
--   3  done     sorted set: record -> when the record of a delivered event may be forgotten
--   4  message  sorted set: record -> stamp of the stored message, for IDs that producers gave
--   5  pauses   sorted set: destination -> until when it takes no message
--   6… logs     sorted sets, one for each node: event ID (and ID, line feed, slot number) -> time of admission
--
-- ARGV
--   nonce, lease, retention (both microseconds), forward ("1": denied events are leased too, without taking slots)
--   number of nodes; for each: number of limits; for each limit: count, window (microseconds)
--   number of asks; for each: cost, number of nodes on the path; for each: its index, from 1, the root first
--     a cost of 0 asks only what is known of the event, or, in a call that is repeated, what it was granted
--   for each event: record, stamp, index of its ask
--
-- Returns
--   time, { destination, until, … } of the pauses in force, { verdict, limit, time, … } of the distinct answers, then
--   for each event the number of its answer, from 1. In an answer
--     verdict  see below
--     limit    number of the limit that denied, from 1 in the order of ARGV, else 0
--     time     microseconds until the next slot opens (denied) or the lease ends (admitted, repeated, leased), else 0
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is charged.

local ADMITTED = 1 -- recorded and leased to the caller
local DENIED = 2 -- some limit is full
local NEVER_FITS = 3 -- the cost is above some limit's count
local REPEATED = 4 -- admitted earlier, its lease has lapsed; leased to the caller now
local LEASED = 5 -- someone else is delivering it
local DONE = 6 -- this stored message was delivered
local DUPLICATE = 7 -- another stored message with this ID was admitted
local UNKNOWN = 8 -- asked with cost 0, and nothing is known

local calls_key, leased_key, done_key, message_key, pauses_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local KEYS_BEFORE_LOGS = 5
local EVENT_ARGUMENTS = 3

-- How long the nonce of a call is kept: longer than a client goes on repeating it.
local NONCE_KEPT = 10 * SECOND

-- Redis keeps a sorted set of up to SMALL entries (zset-max-listpack-entries, unless someone configured another number)
-- as a list, in which each search goes from one end to the other. For MANY searches it is better read whole.
local SMALL, MANY = 128, 16

-- Arguments.

local nonce, lease, retention, forward = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local position = 4
local function next_number()
  position = position + 1
  return tonumber(ARGV[position])
end

local nodes, limit_count, longest_window = {}, 0, 0
for n = 1, next_number() do
  local node = { log = KEYS[KEYS_BEFORE_LOGS + n], window = 0 }
  for l = 1, next_number() do
    limit_count = limit_count + 1
    node[l] = { number = limit_count, count = next_number(), window = next_number() }
    node.window = math.max(node.window, node[l].window)
  end
  longest_window = math.max(longest_window, node.window)
  nodes[n] = node
end

local asks = {} -- by their index as ARGV spells it
for a = 1, next_number() do
  local ask = { cost = next_number() }
  for n = 1, next_number() do
    ask[n] = nodes[next_number()]
    for _, limit in ipairs(ask[n]) do
      if ask.cost > limit.count then
        ask.never_fits = ask.never_fits or limit
      end
    end
  end
  asks[tostring(a)] = ask
end

local first_event = position + 1

-- Read.

local now, ran_ahead = deployment_time(calls_key)

-- The end of the leases that this very call granted when it ran before.
local lease_granted_before
local ran_before = redis.call('ZSCORE', calls_key, nonce)
if ran_before then
  lease_granted_before = tonumber(ran_before) + lease
end

local pauses = redis.call('ZRANGE', pauses_key, '(' .. integer(now), '+inf', 'BYSCORE', 'WITHSCORES')

local records, record_count = {}, 0
for argument = first_event, #ARGV, EVENT_ARGUMENTS do
  record_count = record_count + 1
  records[record_count] = ARGV[argument]
end

-- Those records that a set holds, each with its score or, where that was not read, true.
local function scores(key)
  local found = {}
  if record_count >= MANY and redis.call('ZCARD', key) <= SMALL then
    for _, record in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      found[record] = true
    end
    return found
  end
  for from = 1, record_count, PIECE do
    local upto = math.min(from + PIECE - 1, record_count)
    local piece = redis.call('ZMSCORE', key, unpack(records, from, upto))
    for i = from, upto do
      found[records[i]] = piece[i - from + 1] or nil
    end
  end
  return found
end
local lease_ends, done_until = scores(leased_key), scores(done_key)

local function score(key, record, found)
  return tonumber(found == true and redis.call('ZSCORE', key, record) or found)
end

redis.call('ZMSCORE', message_key, '') -- a key of the wrong type, and a right that only long sets need, show here

local function measure(node)
  local upto = integer(now + TOLERANCE)
  for _, limit in ipairs(node) do
    limit.used = redis.call('ZCOUNT', node.log, '(' .. integer(now - limit.window), upto)
    limit.free = limit.count - limit.used
  end
  node.measured = true
end

-- When the n-th of the entries that are in the window, and were so before this call, was taken.
local function taken_at(node, limit, n)
  if not limit.stale then
    limit.stale = redis.call('ZCOUNT', node.log, '-inf', integer(now - limit.window))
  end
  local rank = integer(limit.stale + n - 1)
  return tonumber(redis.call('ZRANGE', node.log, rank, rank, 'WITHSCORES')[2])
end

-- Time until `cost` slots are free: until as many of the oldest entries as are in the way have left the window. Those of
-- this call come behind the older ones, but before any that a clock that ran ahead has left.
local function time_until_free(node, limit, cost)
  local leaving, taken_now = cost - limit.free, limit.count - limit.used - limit.free
  local last = leaving <= limit.used and taken_at(node, limit, leaving) or math.huge
  if last > now then
    last = leaving > taken_now and math.max(now, taken_at(node, limit, leaving - taken_now)) or now
  end
  return last + limit.window - now
end

-- Decide.

local answers, answer_count = {}, 0

-- The number of a new answer.
local function answer(verdict, limit, time)
  answers[#answers + 1] = verdict
  answers[#answers + 1] = limit
  answers[#answers + 1] = time
  answer_count = answer_count + 1
  return answer_count
end

local admitted = answer(ADMITTED, 0, lease)
local repeated = answer(REPEATED, 0, lease)
local leased_now = answer(LEASED, 0, lease)
local done = answer(DONE, 0, 0)
local duplicate = answer(DUPLICATE, 0, 0)
local unknown = answer(UNKNOWN, 0, 0)

local time = integer(now)
local granted, grants = {}, 0 -- argument of each event that gets a lease
local granted_stamp = {} -- record -> stamp of those
local charged, charges = {}, 0 -- argument of each event that was admitted

local function grant(argument)
  grants = grants + 1
  granted[grants] = argument
  granted_stamp[ARGV[argument]] = ARGV[argument + 1]
end

-- The answer to a denied ask, or nil: that of the first limit from the root down that has no room.
local function denial(ask)
  if ask.never_fits then
    return answer(NEVER_FITS, ask.never_fits.number, 0)
  end
  for n = 1, #ask do
    local node = ask[n]
    if not node.measured then
      measure(node)
    end
    for l = 1, #node do
      local limit = node[l]
      if ask.cost > limit.free then
        return answer(DENIED, limit.number, time_until_free(node, limit, ask.cost))
      end
    end
  end
end

-- Takes an event's slots: node.additions collects { time, member, … } for the log.
local function charge(argument, ask)
  local name, cost = log_names(ARGV[argument], ARGV[argument + 1]), ask.cost
  for n = 1, #ask do
    local node = ask[n]
    local additions, count = node.additions or {}, node.addition_count or 0
    for slot = 1, cost do
      additions[count + 1] = time
      additions[count + 2] = slot == 1 and name or slot_member(name, slot)
      count = count + 2
    end
    node.additions, node.addition_count = additions, count
    for l = 1, #node do
      node[l].free = node[l].free - cost
    end
  end
  charges = charges + 1
  charged[charges] = argument
end

local function judge(argument, ask)
  if ask.cost == 0 then
    return unknown
  end
  -- As long as nothing more was admitted, the same ask has the same answer.
  if ask.judged_after ~= charges then
    ask.denied = denial(ask)
    ask.judged_after = charges
  end
  if not ask.denied then
    charge(argument, ask)
    grant(argument)
    return admitted
  end
  if forward then
    grant(argument)
  end
  return ask.denied
end

-- The answer for an event that was admitted before, and is leased or done.
local function recall(argument, ask, lease_end, is_done)
  local record, stamp = ARGV[argument], ARGV[argument + 1]
  if stamp ~= '' then
    local known = redis.call('ZSCORE', message_key, record)
    if not known or tonumber(known) ~= tonumber(stamp) then
      return duplicate
    end
  end
  if is_done then
    return done
  elseif lease_end == lease_granted_before then
    granted_stamp[record] = stamp
    return answer(ADMITTED, 0, lease_end - now)
  elseif lease_end > now then
    return answer(LEASED, 0, lease_end - now)
  elseif ask.cost == 0 then
    return unknown
  end
  grant(argument)
  return repeated
end

local reply, replies = { now, pauses, answers }, 3
for index = 1, record_count do
  local record = records[index]
  local argument = first_event + EVENT_ARGUMENTS * (index - 1)
  local ask = asks[ARGV[argument + 2]]
  local stamp_granted, lease_end, done_at = granted_stamp[record], lease_ends[record], done_until[record]
  if lease_end or done_at then
    lease_end, done_at = score(leased_key, record, lease_end), score(done_key, record, done_at)
  end
  replies = replies + 1
  if stamp_granted then
    reply[replies] = stamp_granted == ARGV[argument + 1] and leased_now or duplicate
  elseif (done_at and done_at > now) or (lease_end and lease_end > now - retention) then
    reply[replies] = recall(argument, ask, lease_end, done_at and done_at > now)
  elseif ask.denied and ask.judged_after == charges and not forward then
    reply[replies] = ask.denied
  else
    reply[replies] = judge(argument, ask)
  end
end

-- Write.

if grants == 0 then
  return reply
end

-- What does no harm by itself goes first, so that a user who lacks a command is told so before anything is charged.
local calls_kept = milliseconds(math.max(retention, longest_window))
redis.call('ZREMRANGEBYSCORE', calls_key, '-inf', integer(now - NONCE_KEPT))
if ran_ahead then
  redis.call('ZREMRANGEBYSCORE', calls_key, '(' .. integer(now + TOLERANCE), '+inf')
end
local calls_were_there = redis.call('PEXPIRE', calls_key, calls_kept) == 1
local function forget_until(key, upto)
  local forgotten = redis.call('ZRANGE', key, '-inf', upto, 'BYSCORE', 'LIMIT', 0, PIECE)
  if #forgotten > 0 then
    redis.call('ZREM', key, unpack(forgotten))
    redis.call('ZREM', message_key, unpack(forgotten))
  end
end
local taken_anew = {}
for g = 1, grants do
  local record = ARGV[granted[g]]
  if done_until[record] then
    taken_anew[#taken_anew + 1] = record
  end
end
in_pieces('ZREM', done_key, taken_anew)
forget_until(done_key, time)
forget_until(leased_key, integer(now - retention))

redis.call('ZADD', calls_key, time, nonce)
if not calls_were_there then
  redis.call('PEXPIRE', calls_key, calls_kept)
end

local leases, messages, message_count, lease_end = {}, {}, 0, integer(now + lease)
for g = 1, grants do
  local record, stamp = ARGV[granted[g]], ARGV[granted[g] + 1]
  leases[2 * g - 1], leases[2 * g] = lease_end, record
  if stamp ~= '' then
    messages[message_count + 1], messages[message_count + 2] = stamp, record
    message_count = message_count + 2
  end
end
in_pieces('ZADD', leased_key, leases)
redis.call('PEXPIRE', leased_key, milliseconds(lease + retention))
if message_count > 0 then
  in_pieces('ZADD', message_key, messages)
  redis.call('PEXPIRE', message_key, milliseconds(lease + retention))
end

-- Gives another name to the slots whose name the log has for an older event, or for one before them in this call.
local function rename_taken(node)
  local named = {}
  for c = 1, charges do
    local argument = charged[c]
    local ask = asks[ARGV[argument + 2]]
    for n = 1, #ask do
      if ask[n] == node then
        local name, other = log_names(ARGV[argument], ARGV[argument + 1])
        for slot = 1, ask.cost do
          local member = slot_member(name, slot)
          if named[member] or tonumber(redis.call('ZSCORE', node.log, member)) ~= now then
            redis.call('ZADD', node.log, 'NX', time, slot_member(other, slot))
          end
          named[member] = true
        end
      end
    end
  end
end

for _, node in ipairs(nodes) do
  if node.additions then
    redis.call('ZREMRANGEBYSCORE', node.log, '-inf', integer(now - node.window))
    if add_new(node.log, node.additions) < node.addition_count / 2 then
      rename_taken(node)
    end
    redis.call('PEXPIRE', node.log, milliseconds(node.window + TOLERANCE))
  end
end
return reply
