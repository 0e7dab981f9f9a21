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
--   in one string, for each event two bytes: the number of its ask, from 1, the higher byte first
--   for each event its record, then for each event its stamp; no stamps if all are ''
--
-- Returns
--   time, { destination, until, … } of the pauses in force, { verdict, limit, time, … } of the distinct answers, then
--   for each event the number of its answer, from 1, then, if there is a shadow, for each event the number of the
--   shadow's answer, 0 where none was asked for. In an answer
--     verdict  see parts/judging.lua
--     limit    number of the limit that denied, from 1 in the order of ARGV, else 0
--     time     microseconds until the next slot opens (denied) or the lease ends (admitted, repeated, leased), else 0
--
-- Errors: STALELIMITS, generation and revision of newer limits: a call was made with those before; nothing was decided.
-- WRONGTYPE and NOPERM are raised before anything is charged.

local calls_key, leased_key, done_key, message_key, pauses_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local limits_key, taken_key, shadow_taken_key = KEYS[6], KEYS[7], KEYS[8]
local KEYS_BEFORE_METERS = 8

-- How long the state of the limits is known. An instance that has not read them for a year is none that still runs.
local LIMITS_KEPT = 366 * 24 * 3600 * SECOND

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

local longest_window = 0 -- of the limits in force

-- What is asked of one set of limits. What was answered is the answer to all that ask the same, until the set is charged.
local function read_view(set, cost)
  local view = {
    set = set, cost = cost, guarantee = tonumber(next_argument()), path = read_path(next_argument, meters),
    never_fits = false, judged_after = false, denied = false, timed = false, follows = false, shadow = nil,
  }
  for _, meter in ipairs(view.path) do
    local others = 0
    if #meter.guarantees > 0 then
      local own = meter.guarantees[view.guarantee] and meter.guarantees[view.guarantee].slots or 0
      others = cost > own and meter.guarantees.slots - own or 0
    end
    for _, limit in ipairs(meter.limits) do
      if cost > limit.burst - others then
        view.never_fits = view.never_fits or limit
      end
    end
    view.timed = view.timed or meter.algorithm.times_admissions
    view.follows = view.follows or meter.algorithm.follows_delivery
  end
  return view
end

-- How many events took slots in each set of limits.
local in_force, shadow = { charges = 0 }, has_shadow and { charges = 0, is_shadow = true }

local asks = {}
for a = 1, tonumber(next_argument()) do
  local cost = tonumber(next_argument())
  local ask = read_view(in_force, cost)
  for _, meter in ipairs(ask.path) do
    longest_window = math.max(longest_window, meter.longest)
  end
  ask.shadow = has_shadow and read_view(shadow, cost)
  asks[a] = ask
end

-- What is known.

local ask_numbers = next_argument()
local event_count, before_records = #ask_numbers / 2, position()
local before_stamps = before_records + event_count
local stamped = #ARGV > before_stamps

local pauses = redis.call('ZRANGE', pauses_key, '(' .. time, '+inf', 'BYSCORE', 'WITHSCORES')
local lease_ends = scores(leased_key, ARGV, before_records, event_count)
local done_until = scores(done_key, ARGV, before_records, event_count)
local shadow_taken
if has_shadow then
  local messages = {} -- names of the stored messages
  for index = 1, event_count do
    local _, message = log_names(ARGV[before_records + index], stamped and ARGV[before_stamps + index] or '')
    messages[index] = message
  end
  shadow_taken = scores(shadow_taken_key, messages, 0, event_count)
end
if stamped then
  redis.call('ZSCORE', message_key, '') -- a key of the wrong type, and a missing right, show here
end

-- Decide.

-- What the functions of parts/judging.lua know and decide.
local batch = {
  now = now, time = time, lease = lease, nonce = nonce, forward = forward, in_force_since = in_force_since,
  calls_key = calls_key, message_key = message_key, taken_key = taken_key,
  shadow_taken_key = shadow_taken_key, shadow_taken = shadow_taken, shadow_kept = shadow_kept,
  ran_before = nil, -- when this very call did; false if it did not, nil until that is asked
  answers = {}, constant_answers = {}, -- as the reply has them; verdict -> number of those that have no time of their own
  granted = {}, granted_stamp = {}, -- records of the events that get a lease; record -> stamp of those
  timed = {}, shadow_timed = {}, -- { time, record, … } of admissions
  taken_elsewhere = {}, -- records of events taken over that older limits admitted
}

local reply, replies, shadow_reply = { now, pauses, batch.answers }, 3, {}
local granted_stamps, denials_hold = batch.granted_stamp, not forward and not has_shadow
for index = 1, event_count do
  local record, stamp = ARGV[before_records + index], stamped and ARGV[before_stamps + index] or ''
  local higher, lower = string.byte(ask_numbers, 2 * index - 1, 2 * index)
  local ask = asks[256 * higher + lower]
  local granted_stamp, lease_end, done_at = granted_stamps[record], lease_ends[record], done_until[record]
  if lease_end or done_at then
    lease_end, done_at = score(leased_key, record, lease_end), score(done_key, record, done_at)
  end
  local is_done = done_at and done_at > now
  replies = replies + 1
  if granted_stamp then
    reply[replies] = constant_answer(batch, granted_stamp == stamp and LEASED or DUPLICATE)
  elseif is_done or (lease_end and lease_end > now - retention) then
    reply[replies] = recall(batch, record, stamp, ask, lease_end, is_done)
  elseif ask.denied and denials_hold and ask.judged_after == in_force.charges then
    reply[replies] = ask.denied
  else
    reply[replies] = judge(batch, record, stamp, ask)
    if has_shadow then
      shadow_reply[index] = judge_in_shadow(batch, record, stamp, ask.shadow)
    end
  end
end
if has_shadow then
  for index = 1, event_count do
    reply[replies + index] = shadow_reply[index] or 0
  end
end

-- Write. What does no harm by itself goes first, so that a user who lacks a command is told so before anything is charged.

local kept = math.max(retention, longest_window)
if is_newer then
  save_numbers(limits_key, LIMITS_KEPT, generation, revision, now)
end

for _, meter in ipairs(meters) do
  if meter.changed and meter.algorithm.trim then
    meter.algorithm.trim(meter)
  end
end
local granted = batch.granted
if #granted > 0 then
  if ran_ahead then
    redis.call('ZREMRANGEBYSCORE', calls_key, '(' .. integer(now + TOLERANCE), '+inf')
  end
  local calls_were_there = redis.call('PEXPIRE', calls_key, milliseconds(kept)) == 1
  local taken_anew = {}
  for _, record in ipairs(granted) do
    if done_until[record] then
      taken_anew[#taken_anew + 1] = record
    end
  end
  in_pieces('ZREM', done_key, taken_anew)
  in_pieces('ZREM', taken_key, batch.taken_elsewhere)
  redis.call('ZADD', calls_key, time, nonce)
  if not calls_were_there then
    redis.call('PEXPIRE', calls_key, milliseconds(kept))
  end
end

for _, meter in ipairs(meters) do
  if meter.changed then
    meter.algorithm.write(meter)
  end
end

if #granted > 0 then
  local leases, messages, lease_end = {}, {}, integer(now + lease)
  for g, record in ipairs(granted) do
    leases[2 * g - 1], leases[2 * g] = lease_end, record
    if stamped and batch.granted_stamp[record] ~= '' then
      messages[#messages + 1] = batch.granted_stamp[record]
      messages[#messages + 1] = record
    end
  end
  local records_kept = milliseconds(lease + retention)
  add_for(leased_key, leases, records_kept)
  add_for(message_key, messages, records_kept)
  add_for(taken_key, batch.timed, records_kept)
end
if #batch.shadow_timed > 0 then
  redis.call('ZREMRANGEBYSCORE', shadow_taken_key, '-inf', integer(now - shadow_kept))
  add_for(shadow_taken_key, batch.shadow_timed, milliseconds(shadow_kept + TOLERANCE))
end
return reply
