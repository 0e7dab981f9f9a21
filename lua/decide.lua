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
--   2  leased        sorted set: record -> end of the lease of whoever is delivering the event (see parts/doubt.lua)
--   3  done          sorted set: record -> when the record of a delivered event may be forgotten
--   4  message       sorted set: record -> stamp of the stored message, for IDs that producers gave
--   5  pauses        sorted set: destination -> until when it takes no message
--   6  limits        string: generation and revision of the newest limits that events were judged by, and since when
--   7  taken         sorted set: record -> time of admission, where a meter needs it to return slots
--   8  shadow:taken  likewise, of the events that this state of the shadow admitted; its members name stored messages
--   9… meters        see read_meters
--
-- ARGV
--   nonce, lease, retention (both microseconds), forward ("1": denied events are leased too, without taking slots)
--   generation and revision of the limits
--   "1" if stamps follow; in one string, for each event two bytes: the number of its ask, from 1, the higher byte first
--   shadow: how long an event counts as admitted by it (microseconds), 0 if there is none
--   logs and paths of a batch that may be judged as one (see parts/wholesale.lua), and those of its shadow, else '' and ''
--   in one string, a blank behind each:
--     meters (see read_meters), those of the shadow too
--     number of asks; for each: cost, then for the limits in force and, if there is one, for the shadow: number of its
--     guarantee, else 0, and path (see read_path)
--       a cost of 0 asks only what is known of the event, or, in a call that is repeated, what it was granted
--   for each event its record, then for each event its stamp
--
-- Returns
--   time, { destination, until, … } of the pauses in force, { verdict, limit, time, … } of the distinct answers, then
--   for each event the number of its answer, from 1, then, if there is a shadow, for each event the number of the
--   shadow's answer, 0 where none was asked for. In an answer
--     verdict  see parts/judging.lua
--     limit    number of the limit that denied, from 1 in the order of ARGV; 1 for a repeated one in doubt; else 0
--     time     microseconds until the next slot opens (denied) or the lease ends (admitted, repeated, leased), else 0
--
-- Errors: STALELIMITS, generation and revision of newer limits: events were judged by those before; nothing was decided.
-- WRONGTYPE and NOPERM are raised before anything is charged.

local calls_key, leased_key, done_key, message_key, pauses_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local limits_key, taken_key, shadow_taken_key = KEYS[6], KEYS[7], KEYS[8]
local KEYS_BEFORE_METERS = 8

local nonce, lease, retention, forward = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local generation, revision = tonumber(ARGV[5]), tonumber(ARGV[6])
local stamped, ask_numbers, shadow_kept = ARGV[7] == '1', ARGV[8], tonumber(ARGV[9])
local wholesale, wholesale_shadow, definitions, before_records = ARGV[10], ARGV[11], ARGV[12], 12
local event_count, ask_bytes, has_shadow = #ask_numbers / 2, { string.byte(ask_numbers, 1, -1) }, shadow_kept > 0
local before_stamps = before_records + event_count

-- What is known.

local newest = load_numbers(limits_key) or { 0, 0, 0 }
if newest[1] > generation or newest[1] == generation and newest[2] > revision then
  return redis.error_reply('STALELIMITS ' .. integer(newest[1]) .. ' ' .. integer(newest[2]))
end
local is_newer = generation > newest[1] or generation == newest[1] and revision > newest[2]

local now, _, ran_ahead = deployment_time(calls_key)
local time = integer(now)
local pauses = redis.call('ZRANGE', pauses_key, '(' .. time, '+inf', 'BYSCORE', 'WITHSCORES')
local known = {} -- the records that are leased or done, those that this call leases too
local lease_ends = scores(leased_key, ARGV, before_records, event_count, known)
local done_until = scores(done_key, ARGV, before_records, event_count, known)
if stamped then
  redis.call('ZSCORE', message_key, '') -- a key of the wrong type, and a missing right, show here
end

-- What the functions of the parts know and decide.
local batch = {
  now = now, time = time, lease = lease, retention = retention, nonce = nonce, forward = forward,
  count = event_count, values = ARGV, before_records = before_records, before_stamps = stamped and before_stamps,
  ask_bytes = ask_bytes, known = known, pauses = pauses,
  calls_key = calls_key, leased_key = leased_key, message_key = message_key, taken_key = taken_key,
  trim = new_trimmer(), shadow_taken_key = shadow_taken_key, shadow_kept = shadow_kept, keys = KEYS, before_meters = KEYS_BEFORE_METERS,
}
if wholesale ~= '' and not is_newer and not ran_ahead then
  local reply = judge_wholesale(batch, wholesale, wholesale_shadow)
  if reply then
    return reply
  end
end

-- What is asked of which limits.

local next_word, next_key = words(definitions), reader(KEYS, KEYS_BEFORE_METERS)
local meters = read_meters(next_word, next_key, now, lease)

local longest_window = 0 -- of the limits in force

-- What is asked of one set of limits. What was answered is the answer to all that ask the same, until the set is charged.
local function read_view(set, cost)
  local view = {
    set = set, cost = cost, guarantee = tonumber(next_word()), path = read_path(next_word, meters),
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
for a = 1, tonumber(next_word()) do
  local cost = tonumber(next_word())
  local ask = read_view(in_force, cost)
  for _, meter in ipairs(ask.path) do
    longest_window = math.max(longest_window, meter.longest)
  end
  ask.shadow = has_shadow and read_view(shadow, cost)
  asks[a] = ask
end

-- Decide.

batch.in_force_since = is_newer and now or newest[3] or 0
batch.ran_before = nil -- when this very call did; false if it did not, nil until that is asked
batch.answers, batch.constant_answers = {}, {} -- as the reply has them; verdict -> number of those that have no time of their own
batch.granted, batch.granted_stamp = {}, {} -- records of the events that get a lease; record -> stamp of those
batch.timed, batch.shadow_timed = {}, {} -- { time, record, … } of admissions
batch.taken_elsewhere = {} -- records of events taken over that older limits admitted
if has_shadow then
  batch.shadow_taken = scores(shadow_taken_key, stored_messages(batch), 0, event_count)
end

local reply, shadow_reply = { now, pauses, batch.answers }, {}
local granted_stamps, denials_hold = batch.granted_stamp, not forward and not has_shadow
for index = 1, event_count do
  local record, ask = ARGV[before_records + index], asks[256 * ask_bytes[2 * index - 1] + ask_bytes[2 * index]]
  if not known[record] and denials_hold and ask.denied and ask.judged_after == in_force.charges then
    reply[3 + index] = ask.denied
  else
    local stamp = stamped and ARGV[before_stamps + index] or ''
    local lease_end, done_at = lease_ends[record], done_until[record]
    if lease_end or done_at then
      lease_end, done_at = score(leased_key, record, lease_end), score(done_key, record, done_at)
    end
    local is_done = done_at and done_at > now
    if granted_stamps[record] then
      reply[3 + index] = constant_answer(batch, granted_stamps[record] == stamp and LEASED or DUPLICATE)
    elseif is_done or (lease_end and lease_end > now - retention) then
      reply[3 + index] = recall(batch, record, stamp, ask, lease_end, is_done)
    else
      reply[3 + index] = judge(batch, record, stamp, ask)
      if has_shadow then
        shadow_reply[index] = judge_in_shadow(batch, record, stamp, ask.shadow)
      end
    end
  end
end
if has_shadow then
  for index = 1, event_count do
    reply[3 + event_count + index] = shadow_reply[index] or 0
  end
end

-- Write. What does no harm by itself goes first, so that a user who lacks a command is told so before anything is charged.

if is_newer and event_count > 0 then -- to ask about nothing changes nothing
  save_numbers(limits_key, LIMITS_KEPT, generation, revision, now)
end

for _, meter in ipairs(meters) do
  if meter.changed and meter.algorithm.trim then
    meter.algorithm.trim(meter, batch.trim)
  end
end
local granted = batch.granted
if #granted > 0 then
  if ran_ahead then
    trim_ahead(calls_key, now)
  end
  local taken_anew = {}
  for _, record in ipairs(granted) do
    if done_until[record] then
      taken_anew[#taken_anew + 1] = record
    end
  end
  in_pieces('ZREM', done_key, taken_anew)
  in_pieces('ZREM', taken_key, batch.taken_elsewhere)
  note_call(calls_key, nonce, time, math.max(retention, longest_window))
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
write_shadow_taken(batch, batch.shadow_timed)
return reply
