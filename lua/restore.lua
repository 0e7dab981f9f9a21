-- restore.lua: records admissions of workers without Redis, with their own times.
--
-- An admission is recorded whether the limits have room or not. An event that is recorded already takes no second slot. Pairs
-- are opened and ended as in finish.lua, and announced as in announce.lua if the message is still being delivered. The slots that
-- follow a delivery return if Redis admitted the event, and the event was delivered without Redis.
--
-- KEYS
--   1   calls    sorted set: nonce of a call that granted something -> its time
--   2   leased   sorted set: event key -> end of the lease (see lib/doubt.lua)
--   3   done     sorted set: event key of a delivered event -> when its record expires
--   4   message  sorted set: event key -> version of the stored message
--   5   taken    hash: event key -> time of admission and timed buckets (see lib/buckets.lua)
--   6…  books of pairs, see read_books; then buckets, see read_buckets
--
-- ARGV
--   lease, retention, retention of pairs (microseconds), books (see read_books), buckets (see read_buckets)
--   for each event: event key, version, age of its admission (microseconds), cost, outcome (see below), whether it is in doubt
--   ("1" or "0"), number of its book, field of its pair or '', delivery (see read_delivery), number of its guarantee, path (see
--   read_path), then the paths of the slots that follow its delivery, in force and in the shadow
--
-- Returns the time. The leases of events that are not delivered yet end one lease after it.
--
-- Errors: WRONGTYPE is raised before anything is written.

--@include lib/buckets algorithms lib/records lib/doubt lib/pairs lib/folded

-- Outcomes of an admission, as became in Go.
local UNDER_WAY_STILL, DELIVERED, RELEASED = '0', '1', '2'

local calls_key, leased_key, done_key, message_key, taken_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local next_argument = reader(ARGV, 0)
local next_key = reader(KEYS, 5)
local lease, retention = tonumber(next_argument()), tonumber(next_argument())
local pairs_kept = tonumber(next_argument())

redis.call('ZCARD', leased_key)
redis.call('ZCARD', done_key)
redis.call('ZCARD', message_key)
redis.call('HGET', taken_key, '')
local now = deployment_time(calls_key)
local books = read_books(next_argument, next_key, now, pairs_kept)
local buckets = read_buckets(next_argument, next_key, now, lease)
read_all(buckets)

local function is_leased(other)
  return tonumber(redis.call('ZSCORE', leased_key, other) or 0) > now - retention
end

-- Returns whether a firing event with a message in the open pair, or folded into such a message, was posted once more without Redis. The
-- resolved event has to update that message too.
local function was_posted_again(book, pair, event_key, delivery)
  local has_message = false
  local _, minute = folded_as(taken_key, event_key)
  for _, m in ipairs(string.sub(pair, 1, 1) ~= '\n' and read_messages(read_pair(book, pair)) or {}) do
    local _, original, receipt = read_delivery(delivery)
    if m.receipt == receipt or receipt == '' then
      return false
    end
    has_message = has_message or m.event_key == original or m.folded > 0 and math.floor(m.time / MINUTE) == minute
  end
  return has_message
end

local leases, dones, messages, delivered_keys, not_done, times = {}, {}, {}, {}, {}, {}
local admissions, counted, delivered = {}, {}, {}
for event_key in next_argument do
  local version, at = next_argument(), now - tonumber(next_argument())
  local event = { event_key = event_key, at = at, cost = tonumber(next_argument()) }
  local became, in_doubt = next_argument(), next_argument() == '1'
  event.delivered = became ~= UNDER_WAY_STILL -- the slots that follow a delivery have returned
  local book, pair, delivery = books[tonumber(next_argument())], next_argument(), next_argument()
  event.guarantee, event.path = tonumber(next_argument()), read_path(next_argument, buckets)
  event.following = { read_path(next_argument, buckets), read_path(next_argument, buckets) }
  event.name, event.message = log_name(event_key, version), message_name(event_key, version)
  event.other = event.message
  local done_until = tonumber(redis.call('ZSCORE', done_key, event_key) or 0)
  local lease_end = tonumber(redis.call('ZSCORE', leased_key, event_key) or 0)
  local is_done = done_until > now
  local known = is_done or lease_end > now - retention
  if not known and not counted[event_key] then
    admissions[#admissions + 1] = event
    local timed = timed_buckets(event.path)
    if timed then
      times[#times + 1] = event_key
      times[#times + 1] = integer(at) .. ' ' .. timed
    end
  end
  counted[event_key] = true
  if became == DELIVERED then
    delivered[#delivered + 1] = event
    if book and (not is_done or was_posted_again(book, pair, event_key, delivery)) then
      settle_pair(book, pair, event_key, delivery)
    end
    if not is_done then
      dones[#dones + 1] = integer(now + retention)
      dones[#dones + 1] = event_key
    end
    delivered_keys[#delivered_keys + 1] = event_key
    delivered_keys[#delivered_keys + 1] = doubt_of(event_key)
  elseif not is_done then
    -- A lease that has not ended may have been recorded by an earlier run of this call, whose reply was lost.
    if known and not is_held(lease_end, now, lease) then
      in_doubt = in_doubt or ended_in_doubt(leased_key, event_key, lease_end)
    end
    if book and string.sub(pair, 1, 1) ~= '\n' then
      announce_pair(book, pair, event_key, delivery, is_leased)
    end
    if became ~= RELEASED or not is_held(lease_end, now, lease) then
      leases[#leases + 1] = became == RELEASED and lease_score(now, not in_doubt) or integer(now + lease)
      leases[#leases + 1] = event_key
    end
    if in_doubt then
      leases[#leases + 1] = integer(now + lease)
      leases[#leases + 1] = doubt_of(event_key)
    end
    not_done[#not_done + 1] = event_key -- an expired record of an older event
  end
  if version ~= '' and (became == DELIVERED or not known) then
    messages[#messages + 1] = version
    messages[#messages + 1] = event_key
  end
end

check_rights(leased_key, lease + retention)
put_for(taken_key, times, milliseconds(lease + retention))
local trim = new_trimmer()
for _, bucket in ipairs(buckets) do
  if bucket.algorithm.trim then
    bucket.algorithm.trim(bucket, trim)
  end
end
write_books(books)
in_pieces('ZREM', done_key, not_done)
for _, event in ipairs(admissions) do
  for _, bucket in ipairs(event.path) do
    bucket.algorithm.restore(bucket, event, event.at)
    bucket.changed = true
  end
end
write_changed(buckets)
add_and_keep(message_key, messages, lease + retention)
add_and_keep(leased_key, leases, lease + retention)
add_and_keep(done_key, dones, retention)
in_pieces('ZREM', leased_key, delivered_keys)
for _, event in ipairs(delivered) do
  give_back_following(event)
end
return now
