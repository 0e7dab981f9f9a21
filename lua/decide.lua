-- decide.lua: evaluates a batch of events against every limit on their paths, and leases the admitted events.
--
-- An event takes its slots in all buckets of its path at once or in none. The script is idempotent by event: an event
-- that is leased or done takes no second slot, and a retry after a lost reply returns the first answer.
--
-- The script can also evaluate the batch against a second set of limits, the shadow. The shadow has its own buckets, takes its
-- slots there, and does not affect the decision.
--
-- KEYS
--   1   calls           sorted set: nonce of a call that granted something -> its time. The deployment's time is always
--                       after the newest call.
--   2   leased          sorted set: event key -> end of the lease (see lib/doubt.lua)
--   3   done            sorted set: event key of a delivered event -> when its record expires
--   4   message         sorted set: event key -> version of the stored message, for IDs that producers gave
--   5   pauses          sorted set: channel -> end of its pause
--   6   limits          string: generation and revision of the newest limits that evaluated an event, time of the change
--   7   taken           hash: event key -> time of admission and timed buckets (see lib/buckets.lua); of a folded event, see lib/folded.lua
--   8   shadow:taken:…  sorted set: message name -> time of admission by this version of the shadow limits
--   9…  buckets         see read_buckets
--
-- ARGV
--   nonce, lease, retention (both microseconds), forward ("1": denied events are leased too, without taking slots)
--   generation and revision of the limits
--   "1" if versions follow; in one string, for each event two bytes: the number of its ask, from 1, the higher byte first
--   shadow: how long an event counts as admitted by it (microseconds), 0 if there is none
--   logs and paths of a batch that may take the fast path (see fastpath.lua), the same for the shadow, otherwise '' and ''
--   in one string, a blank behind each:
--     buckets (see read_buckets), with those of the shadow
--     number of asks; for each: cost, then for the limits in force and, if there is one, for the shadow: number of its
--     guarantee, otherwise 0, and path (see read_path)
--       a cost of 0 only reads the records of the event or, in a repeated call, what the call granted; the event may be folded
--       a cost below 0 is that of muted events: those without a record get UNKNOWN and take nothing
--   '' or, if events may be folded, what fold.lua reads; the books' keys follow the buckets in KEYS
--   for each event its event key, then for each event its version, then what fold.lua reads for each event
--
-- Returns
--   time, { channel, end, … } of the pauses in force, { verdict, limit, time, … } of the distinct answers, then
--   for each event the number of its answer, from 1, then, if there is a shadow, for each event the number of the
--   shadow's answer, 0 for events that the shadow was not asked about. In an answer
--     verdict  see lib/verdicts.lua
--     limit    DENIED, EXCEEDS_CAPACITY: number of the limit, from 1 in the order of ARGV; RECLAIMED: 1 if in doubt; ADMITTED,
--              RECLAIMED, DONE: 2 more if the key is flapping; LEASED: 1 if the event waits for the message of its key; FOLDED: the event's
--              number in its message, see fold_into; otherwise 0
--     time     microseconds until the next slot opens (DENIED), the lease ends (ADMITTED, RECLAIMED, LEASED) or the event comes back
--              (LEASED, 1); FOLDED: minutes until its message was posted, since 1970; otherwise 0
--
-- Errors: STALELIMITS, generation, revision: newer limits are in force, and nothing was decided. WRONGTYPE and NOPERM are
-- raised before any slot is charged.

--@include algorithms lib/verdicts lib/batch fastpath

local calls_key, leased_key, done_key, message_key, pauses_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local limits_key, taken_key, shadow_taken_key = KEYS[6], KEYS[7], KEYS[8]
local KEYS_BEFORE_BUCKETS = 8

local nonce, lease, retention, forward = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local generation, revision = tonumber(ARGV[5]), tonumber(ARGV[6])
local versioned, ask_numbers, shadow_kept = ARGV[7] == '1', ARGV[8], tonumber(ARGV[9])
local fastpath, fastpath_shadow, definitions, folds, before_event_keys = ARGV[10], ARGV[11], ARGV[12], ARGV[13], 13
local event_count, ask_bytes, has_shadow = #ask_numbers / 2, { string.byte(ask_numbers, 1, -1) }, shadow_kept > 0
local before_versions = before_event_keys + event_count

-- Read the records.

local newest = load_numbers(limits_key) or { 0, 0 }
if newest[1] > generation or newest[1] == generation and newest[2] > revision then
  return redis.error_reply('STALELIMITS ' .. integer(newest[1]) .. ' ' .. integer(newest[2]))
end
local is_newer = generation > newest[1] or generation == newest[1] and revision > newest[2]

local now, ran_ahead = deployment_time(calls_key)
local time = integer(now)
local pauses = redis.call('ZRANGE', pauses_key, '(' .. time, '+inf', 'BYSCORE', 'WITHSCORES')
local known = {} -- the event keys that are leased or done, including those that this call leases
local lease_ends = scores(leased_key, ARGV, before_event_keys, event_count, known)
local done_until = scores(done_key, ARGV, before_event_keys, event_count, known)
if versioned then
  redis.call('ZSCORE', message_key, '') -- raises WRONGTYPE and NOPERM early
end

-- The state that the included functions share.
local batch = {
  now = now, time = time, lease = lease, retention = retention, nonce = nonce, forward = forward,
  count = event_count, values = ARGV, before_event_keys = before_event_keys, before_versions = versioned and before_versions,
  ask_bytes = ask_bytes, known = known, pauses = pauses,
  calls_key = calls_key, leased_key = leased_key, message_key = message_key, taken_key = taken_key,
  trim = new_trimmer(), shadow_taken_key = shadow_taken_key, shadow_kept = shadow_kept, keys = KEYS, before_buckets = KEYS_BEFORE_BUCKETS,
}
if fastpath ~= '' and not is_newer and not ran_ahead then
  local reply = evaluate_as_one(batch, fastpath, fastpath_shadow)
  if reply then
    return reply
  end
end

-- Evaluate event by event. The functions for it are defined only here, so that the fast path does not pay for them.

--@include lib/buckets lib/doubt lib/folded evaluate

-- Read the buckets and the asks.

local next_word, next_key = words(definitions), reader(KEYS, KEYS_BEFORE_BUCKETS)
local buckets = read_buckets(next_word, next_key, now, lease)
local fold
if folds ~= '' then
--@include lib/records lib/pairs lib/folds lib/flaps fold
  fold = read_fold(batch, words(folds), next_key, before_versions + (versioned and event_count or 0))
end

local longest_window = 0 -- of the limits in force

-- Reads an ask of one set of limits. view.denied caches the denial until the set is charged again.
local function read_view(set, cost)
  local view = {
    set = set, cost = cost, guarantee = tonumber(next_word()), path = read_path(next_word, buckets),
    exceeds = false, evaluated_after = false, denied = false, timed = false, follows = false, shadow = nil,
  }
  for _, bucket in ipairs(view.path) do
    for _, limit in ipairs(bucket.limits) do
      if exceeds(bucket, limit, cost, view.guarantee) then
        view.exceeds = view.exceeds or limit
      end
    end
    view.follows = view.follows or bucket.algorithm.follows_delivery
  end
  local timed = not set.is_shadow and timed_buckets(view.path)
  view.timed = timed and time .. ' ' .. timed
  return view
end

-- `charges` counts the events that took slots in a set of limits.
local in_force, shadow = { charges = 0 }, has_shadow and { charges = 0, is_shadow = true }

local asks = {}
for a = 1, tonumber(next_word()) do
  local cost = tonumber(next_word())
  local is_muted = cost < 0
  cost = math.abs(cost)
  local ask = read_view(in_force, cost)
  ask.is_muted = is_muted
  for _, bucket in ipairs(ask.path) do
    longest_window = math.max(longest_window, bucket.longest)
  end
  ask.shadow = has_shadow and read_view(shadow, is_muted and 0 or cost)
  asks[a] = ask
end

-- Decide.

batch.ran_before = nil -- when this very call ran before; false if it did not, nil until granted_before asks
batch.answers, batch.constant_answers = {}, {} -- the answers of the reply; verdict -> number of an answer with a constant time
batch.granted, batch.granted_version = {}, {} -- event keys that get a lease; event key -> version
batch.timed, batch.shadow_timed = {}, {} -- { event key, value of taken, … } and { time, message name, … } of admissions
if has_shadow then
  batch.shadow_taken = scores(shadow_taken_key, stored_messages(batch), 0, event_count)
end

local reply, shadow_reply = { now, pauses, batch.answers }, {}
local granted_versions, denials_hold = batch.granted_version, not forward and not has_shadow and not fold
for index = 1, event_count do
  local event_key, ask = ARGV[before_event_keys + index], asks[256 * ask_bytes[2 * index - 1] + ask_bytes[2 * index]]
  if not known[event_key] and denials_hold and ask.denied and ask.evaluated_after == in_force.charges then
    reply[3 + index] = ask.denied
  else
    local version = versioned and ARGV[before_versions + index] or ''
    local lease_end, done_at = lease_ends[event_key], done_until[event_key]
    if lease_end or done_at then
      lease_end, done_at = score(leased_key, event_key, lease_end), score(done_key, event_key, done_at)
    end
    local is_done = done_at and done_at > now
    local folded, granted_so_far = fold and fold.answered[event_key], #batch.granted
    if folded then
      reply[3 + index] = folded.version == version and folded.answer or constant_answer(batch, DUPLICATE)
    elseif granted_versions[event_key] then
      reply[3 + index] = constant_answer(batch, granted_versions[event_key] == version and LEASED or DUPLICATE)
    elseif is_done or (lease_end and lease_end > now - retention) then
      reply[3 + index] = recall(batch, event_key, version, ask, lease_end, is_done)
    else
      folded = fold and fold.decide(fold, index, event_key, version)
      reply[3 + index] = folded or evaluate(batch, event_key, version, ask)
      if has_shadow and not folded then
        shadow_reply[index] = evaluate_in_shadow(batch, event_key, version, ask.shadow)
      end
    end
    if fold then
      reply[3 + index] = fold.mark(fold, index, reply[3 + index])
      if #batch.granted > granted_so_far then
        fold.announce(fold, index, event_key)
      end
    end
  end
end
if has_shadow then
  for index = 1, event_count do
    reply[3 + event_count + index] = shadow_reply[index] or 0
  end
end

-- Write. Commands that do no harm by themselves come first, so that missing rights show before anything is charged.

if is_newer and event_count > 0 then -- an empty batch only asks whether the limits are stale
  save_numbers(limits_key, LIMITS_KEPT, generation, revision, now)
end

if fold then
  fold.write(fold)
end
for _, bucket in ipairs(buckets) do
  if bucket.changed and bucket.algorithm.trim then
    bucket.algorithm.trim(bucket, batch.trim)
  end
end
local granted = batch.granted
if #granted > 0 then
  if ran_ahead then
    trim_ahead(calls_key, now)
  end
  local taken_anew = {}
  for _, event_key in ipairs(granted) do
    if done_until[event_key] then
      taken_anew[#taken_anew + 1] = event_key
    end
  end
  in_pieces('ZREM', done_key, taken_anew)
  note_call(calls_key, nonce, time, math.max(retention, longest_window))
  put_for(taken_key, batch.timed, milliseconds(lease + retention))
end

write_changed(buckets)

if #granted > 0 then
  local leases, messages, lease_end = {}, {}, integer(now + lease)
  for g, event_key in ipairs(granted) do
    leases[2 * g - 1], leases[2 * g] = lease_end, event_key
    if versioned and batch.granted_version[event_key] ~= '' then
      messages[#messages + 1] = batch.granted_version[event_key]
      messages[#messages + 1] = event_key
    end
  end
  local records_kept = milliseconds(lease + retention)
  add_for(leased_key, leases, records_kept)
  add_for(message_key, messages, records_kept)
end
write_shadow_taken(batch, batch.shadow_timed)
return reply
