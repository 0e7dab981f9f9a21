-- decide.lua: judges a batch of events against every limit on their paths, and leases the admitted ones.
--
-- An event takes its slots at all meters of its path at one time, or at none. The script reads and decides everything
-- first and writes last. It is idempotent by event: an ID that is leased or done takes no second slot, and a call
-- that is repeated because its reply was lost gets the same answer.
--
-- A second set of limits, the shadow, may be judged beside: it has meters of its own, takes its slots in those, and
-- nothing that is decided depends on it.
--
-- KEYS
--   1  calls         sorted set: nonce of a call that granted something -> its time. The newest is the time below which
--                    this deployment's clock never goes.
--   2  leased        sorted set: record -> end of the lease of whoever is delivering the event
--   3  done          sorted set: record -> when the record of a delivered event may be forgotten
--   4  message       sorted set: record -> stamp of the stored message, for IDs that producers gave
--   5  pauses        sorted set: destination -> until when it takes no message
--   6  limits        string: generation and revision of the newest limits that a call was made with, and when one first was
--   7  taken         sorted set: record -> time of admission, where a meter needs it to return slots
--   8  shadow:taken  likewise, of the events that this state of the shadow admitted; its members name stored messages
--   9… meters        see read_meters
--
-- ARGV
--   nonce, lease, retention (both microseconds), forward ("1": denied events are leased too, without taking slots)
--   generation and revision of the limits; meters (see read_meters), those of the shadow too
--   shadow: how long an event counts as admitted by it (microseconds), 0 if there is none
--   number of asks; for each: cost, then for the limits in force and, if there is one, for the shadow: number of its
--   guarantee, else 0, and path (see read_path)
--     a cost of 0 asks only what is known of the event, or, in a call that is repeated, what it was granted
--   for each event: record, stamp, index of its ask
--
-- Returns
--   time, { destination, until, … } of the pauses in force, { verdict, limit, time, … } of the distinct answers, then
--   for each event the number of its answer, from 1, then, if there is a shadow, for each event the number of the
--   shadow's answer, 0 where none was asked for. In an answer
--     verdict  see below
--     limit    number of the limit that denied, from 1 in the order of ARGV, else 0
--     time     microseconds until the next slot opens (denied) or the lease ends (admitted, repeated, leased), else 0
--
-- Errors: STALELIMITS, generation and revision of newer limits: a call was made with those before; nothing was decided.
-- WRONGTYPE and NOPERM are raised before anything is charged.

local ADMITTED = 1 -- recorded and leased to the caller
local DENIED = 2 -- some limit is full
local NEVER_FITS = 3 -- the cost is above what some limit ever has
local REPEATED = 4 -- admitted earlier, its lease has lapsed; leased to the caller now
local LEASED = 5 -- someone else is delivering it, or it has to wait until it may be delivered again
local DONE = 6 -- this stored message was delivered
local DUPLICATE = 7 -- another stored message with this ID was admitted
local UNKNOWN = 8 -- asked with cost 0, and nothing is known

local calls_key, leased_key, done_key, message_key, pauses_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local limits_key, taken_key, shadow_taken_key = KEYS[6], KEYS[7], KEYS[8]
local KEYS_BEFORE_METERS = 8
local EVENT_ARGUMENTS = 3

-- How long the state of the limits is known. An instance that has not read them for a year is none that still runs.
local LIMITS_KEPT = 366 * 24 * 3600 * SECOND

-- Redis keeps a sorted set of up to SMALL entries (zset-max-listpack-entries, unless someone configured another number)
-- as a list, in which each search goes from one end to the other. For MANY searches it is better read whole.
local SMALL, MANY = 128, 16

-- Which limits.

local next_argument, position = reader(ARGV, 0)
local next_key = reader(KEYS, KEYS_BEFORE_METERS)
local nonce, lease, retention = next_argument(), tonumber(next_argument()), tonumber(next_argument())
local forward = next_argument() == '1'
local generation, revision = tonumber(next_argument()), tonumber(next_argument())

local newest = load_numbers(limits_key) or { 0, 0, 0 }
if newest[1] > generation or newest[1] == generation and newest[2] > revision then
  return redis.error_reply('STALELIMITS ' .. integer(newest[1]) .. ' ' .. integer(newest[2]))
end

local now, _, ran_ahead = deployment_time(calls_key)
local time = integer(now)
local is_newer = generation > newest[1] or generation == newest[1] and revision > newest[2]
local in_force_since = is_newer and now or newest[3] or 0
local meters = read_meters(next_argument, next_key, now, lease)
local shadow_kept = tonumber(next_argument())
local has_shadow = shadow_kept > 0

local IN_FORCE, SHADOW = 1, 2
local longest_window = 0 -- of the limits in force

-- What is asked of one set of limits.
local function read_view(cost, set)
  local guarantee = tonumber(next_argument())
  local view = read_path(next_argument, meters)
  view.cost, view.guarantee = cost, guarantee
  for _, meter in ipairs(view) do
    view.timed = view.timed or meter.algorithm.times_admissions
    view.follows = view.follows or meter.algorithm.follows_delivery
    longest_window = set == IN_FORCE and math.max(longest_window, meter.longest) or longest_window
    local own = meter.guarantees[guarantee] and meter.guarantees[guarantee].slots or 0
    for _, limit in ipairs(meter.limits) do
      local others = cost > own and limit.guaranteed - own or 0
      if cost > limit.burst - others then
        view.never_fits = view.never_fits or limit
      end
    end
  end
  return view
end

local asks = {} -- by their index as ARGV spells it
for a = 1, tonumber(next_argument()) do
  local cost = tonumber(next_argument())
  local ask = read_view(cost, IN_FORCE)
  if has_shadow then
    ask.shadow = read_view(cost, SHADOW)
  end
  asks[tostring(a)] = ask
end

-- What is known.

local first_event = position() + 1
local records, record_count, stamped = {}, 0, false
for argument = first_event, #ARGV, EVENT_ARGUMENTS do
  record_count = record_count + 1
  records[record_count] = ARGV[argument]
  stamped = stamped or ARGV[argument + 1] ~= ''
end

local function stamp_of(index)
  return ARGV[first_event + EVENT_ARGUMENTS * (index - 1) + 1]
end

local pauses = redis.call('ZRANGE', pauses_key, '(' .. time, '+inf', 'BYSCORE', 'WITHSCORES')

-- Those records that a set holds, each with its score or, where that was not read, true.
local function scores(key, names)
  local found = {}
  if record_count >= MANY and redis.call('ZCARD', key) <= SMALL then
    for _, name in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      found[name] = true
    end
    return found
  end
  for from = 1, record_count, PIECE do
    local upto = math.min(from + PIECE - 1, record_count)
    local piece = redis.call('ZMSCORE', key, unpack(names, from, upto))
    for i = from, upto do
      found[names[i]] = piece[i - from + 1] or nil
    end
  end
  return found
end
local lease_ends, done_until = scores(leased_key, records), scores(done_key, records)
local messages = {} -- names of the stored messages, for the shadow
if has_shadow then
  for index = 1, record_count do
    local _, message = log_names(records[index], stamp_of(index))
    messages[index] = message
  end
end
local shadow_taken = has_shadow and scores(shadow_taken_key, messages)

local function score(key, record, found)
  return tonumber(found == true and redis.call('ZSCORE', key, record) or found)
end

if stamped then
  redis.call('ZSCORE', message_key, '') -- a key of the wrong type, and a missing right, show here
end

-- Decide.

local answers, answer_count = {}, 0

-- The number of a new answer.
local function answer(verdict, limit, duration)
  answers[#answers + 1] = verdict
  answers[#answers + 1] = limit
  answers[#answers + 1] = duration
  answer_count = answer_count + 1
  return answer_count
end

local admitted = answer(ADMITTED, 0, lease)
local repeated = answer(REPEATED, 0, lease)
local leased_now = answer(LEASED, 0, lease)
local done = answer(DONE, 0, 0)
local duplicate = answer(DUPLICATE, 0, 0)
local unknown = answer(UNKNOWN, 0, 0)

local granted, grants = {}, 0 -- index of each event that gets a lease
local granted_stamp = {} -- record -> stamp of those
local charges = { 0, 0 } -- how many events took slots: of the limits in force, and of the shadow
local timed, shadow_timed = {}, {} -- { time, record, … } of admissions
local taken_elsewhere = {} -- records of events taken over that older limits admitted

local function grant(index)
  grants = grants + 1
  granted[grants] = index
  granted_stamp[records[index]] = stamp_of(index)
end

-- The answer to a view whose cost has no room, or nil: that of the first limit from the root down that is full.
local function denial(view)
  if view.never_fits then
    return answer(NEVER_FITS, view.never_fits.number, 0)
  end
  for m = 1, #view do
    local meter = read_once(view[m])
    local limit, wait = meter.algorithm.wait(meter, view.cost, view.guarantee)
    if limit then
      return answer(DENIED, limit.number, wait)
    end
  end
end

-- In the shadow an event goes by the name of its stored message, which its older self may have.
local function event_of(index, view, set)
  local name, message = log_names(records[index], stamp_of(index))
  local other = message
  if set == SHADOW then
    name, other = message, message .. '\n' .. time
  end
  return { name = name, other = other, message = message, cost = view.cost, guarantee = view.guarantee }
end

-- Takes an event's slots at all meters, or returns the answer that denies it.
local function charge(index, view, set)
  -- As long as nothing more was admitted, the same ask has the same answer.
  if view.judged_after ~= charges[set] then
    view.denied = denial(view)
    view.judged_after = charges[set]
  end
  if view.denied then
    return view.denied
  end
  local event = event_of(index, view, set)
  for m = 1, #view do
    local meter = view[m]
    meter.algorithm.take(meter, event)
    meter.changed = true
  end
  charges[set] = charges[set] + 1
end

local function judge(index, ask)
  if ask.cost == 0 then
    return unknown
  end
  local denied = charge(index, ask, IN_FORCE)
  if not denied or forward then
    grant(index)
  end
  if not denied and ask.timed then
    timed[#timed + 1] = time
    timed[#timed + 1] = records[index]
  end
  return denied or admitted
end

-- What the shadow says of an event that is judged. One that it has admitted takes no second slot.
local function judge_in_shadow(index, view)
  if view.cost == 0 then
    return 0
  end
  local message = messages[index]
  local at = score(shadow_taken_key, message, shadow_taken[message])
  if at and at > now - shadow_kept then
    return admitted
  end
  local denied = charge(index, view, SHADOW)
  if not denied then
    shadow_taken[message] = time
    shadow_timed[#shadow_timed + 1] = time
    shadow_timed[#shadow_timed + 1] = message
  end
  return denied or admitted
end

-- Whether this very call granted a lease with this end when it ran before.
local ran_before
local function granted_before(lease_end)
  if ran_before == nil then
    local at = tonumber(redis.call('ZSCORE', calls_key, nonce))
    ran_before = at and at > now - NONCE_KEPT and at
  end
  return ran_before and lease_end == ran_before + lease
end

-- The answer for an event that was admitted before, and is leased or done.
local function recall(index, ask, lease_end, is_done)
  local record, stamp = records[index], stamp_of(index)
  if stamp ~= '' then
    local known = redis.call('ZSCORE', message_key, record)
    if not known or tonumber(known) ~= tonumber(stamp) then
      return duplicate
    end
  end
  if is_done then
    return done
  elseif granted_before(lease_end) then
    granted_stamp[record] = stamp
    return answer(ADMITTED, 0, lease_end - now)
  elseif lease_end > now then
    return answer(LEASED, 0, lease_end - now)
  elseif ask.cost == 0 then
    return unknown
  end
  if ask.follows then
    local wait = resume(event_of(index, ask, IN_FORCE), ask)
    if wait then
      return answer(LEASED, 0, wait)
    end
    charges[IN_FORCE] = charges[IN_FORCE] + 1
  end
  -- A meter that needs this time cannot tell whose slots it returns: they have to be those of the limits of now.
  local at = ask.timed and redis.call('ZSCORE', taken_key, record)
  if at and tonumber(at) < in_force_since then
    taken_elsewhere[#taken_elsewhere + 1] = record
  end
  grant(index)
  return repeated
end

local reply, replies, shadow_reply = { now, pauses, answers }, 3, {}
for index = 1, record_count do
  local record, ask = records[index], asks[ARGV[first_event + EVENT_ARGUMENTS * (index - 1) + 2]]
  local stamp_granted, lease_end, done_at = granted_stamp[record], lease_ends[record], done_until[record]
  if lease_end or done_at then
    lease_end, done_at = score(leased_key, record, lease_end), score(done_key, record, done_at)
  end
  replies = replies + 1
  if stamp_granted then
    reply[replies] = stamp_granted == stamp_of(index) and leased_now or duplicate
  elseif (done_at and done_at > now) or (lease_end and lease_end > now - retention) then
    reply[replies] = recall(index, ask, lease_end, done_at and done_at > now)
  elseif ask.denied and ask.judged_after == charges[IN_FORCE] and not forward and not has_shadow then
    reply[replies] = ask.denied
  else
    reply[replies] = judge(index, ask)
    if has_shadow then
      shadow_reply[index] = judge_in_shadow(index, ask.shadow)
    end
  end
end
if has_shadow then
  for index = 1, record_count do
    reply[replies + index] = shadow_reply[index] or 0
  end
end

-- Write. What does no harm by itself goes first, so that a user who lacks a command is told so before anything is charged.

local kept = math.max(retention, longest_window)
if is_newer then
  save_numbers(limits_key, LIMITS_KEPT, generation, revision, now)
end

local changed = {}
for _, meter in ipairs(meters) do
  if meter.changed then
    changed[#changed + 1] = meter
  end
end
trim_meters(changed)
if grants > 0 then
  if ran_ahead then
    redis.call('ZREMRANGEBYSCORE', calls_key, '(' .. integer(now + TOLERANCE), '+inf')
  end
  local calls_were_there = redis.call('PEXPIRE', calls_key, milliseconds(kept)) == 1
  local taken_anew = {}
  for g = 1, grants do
    local record = records[granted[g]]
    if done_until[record] then
      taken_anew[#taken_anew + 1] = record
    end
  end
  in_pieces('ZREM', done_key, taken_anew)
  in_pieces('ZREM', taken_key, taken_elsewhere)
  redis.call('ZADD', calls_key, time, nonce)
  if not calls_were_there then
    redis.call('PEXPIRE', calls_key, milliseconds(kept))
  end
end

for _, meter in ipairs(changed) do
  meter.algorithm.write(meter)
end

local leases, stamped_records, message_count, lease_end = {}, {}, 0, integer(now + lease)
for g = 1, grants do
  local record, stamp = records[granted[g]], stamp_of(granted[g])
  leases[2 * g - 1], leases[2 * g] = lease_end, record
  if stamp ~= '' then
    stamped_records[message_count + 1], stamped_records[message_count + 2] = stamp, record
    message_count = message_count + 2
  end
end
if grants > 0 then
  in_pieces('ZADD', leased_key, leases)
  redis.call('PEXPIRE', leased_key, milliseconds(lease + retention))
end
if message_count > 0 then
  in_pieces('ZADD', message_key, stamped_records)
  redis.call('PEXPIRE', message_key, milliseconds(lease + retention))
end
if #timed > 0 then
  in_pieces('ZADD', taken_key, timed)
  redis.call('PEXPIRE', taken_key, milliseconds(lease + retention))
end
if #shadow_timed > 0 then
  redis.call('ZREMRANGEBYSCORE', shadow_taken_key, '-inf', integer(now - shadow_kept))
  in_pieces('ZADD', shadow_taken_key, shadow_timed)
  redis.call('PEXPIRE', shadow_taken_key, milliseconds(shadow_kept + TOLERANCE))
end
return reply

