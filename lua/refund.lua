-- refund.lua: returns the slots of events that were definitely not delivered, and removes their records.
--
-- The holder of the lease alone returns slots, or a worker that dropped the event without Redis if nobody holds the lease. A repeated call
-- changes nothing. If the event was reclaimed after a change of limits, the slots stay taken in buckets that only the old limits had; they
-- leave with their windows. A bucket returns no slots of an event that it did not count.
--
-- KEYS
--   1   calls           sorted set: nonce of a call that granted something -> its time
--   2   leased          sorted set: event key -> end of the lease (see lib/doubt.lua)
--   3   done            sorted set: event key of a delivered event -> when its record expires
--   4   message         sorted set: event key -> version of the stored message
--   5   taken           hash: event key -> time of admission and timed buckets (see lib/buckets.lua)
--   6   shadow:taken:…  sorted set: message name -> time of admission by this version of the shadow limits
--   7…  buckets         see read_buckets
--
-- ARGV
--   lease, retention (microseconds), buckets (see read_buckets)
--   for each event: event key, version, the end of the lease known to the caller, or -1 for an event that nobody holds, cost, then for the
--   limits in force and for the shadow: number of its guarantee, otherwise 0, and path (see read_path)
--
-- Returns 1 or 0 for each event: 0 if the caller does not hold the lease; then nothing was changed for the event.
--
-- Errors: WRONGTYPE is raised before anything is written.

--@include lib/buckets algorithms lib/records lib/doubt

-- The end of a lease that nobody holds, as Unheld in Go.
local UNHELD = -1

local keys = { calls = KEYS[1], leased = KEYS[2], done = KEYS[3], message = KEYS[4], taken = KEYS[5] }
local shadow_taken_key = KEYS[6]
local next_argument = reader(ARGV, 0)
local next_key = reader(KEYS, 6)
local lease, retention = tonumber(next_argument()), tonumber(next_argument())

redis.call('ZCARD', keys.done)
redis.call('ZCARD', keys.message)
redis.call('HDEL', keys.taken, '')
local now = deployment_time(keys.calls)
local buckets = read_buckets(next_argument, next_key, now, lease)
read_all(buckets)

-- Returns whether nobody holds the lease of an event, and no holder may have delivered the event.
local function is_left(event_key, version, lease_end)
  local is_same = version == '' or tonumber(redis.call('ZSCORE', keys.message, event_key)) == tonumber(version)
  return is_same and not is_held(lease_end, now, lease) and not ended_in_doubt(keys.leased, event_key, lease_end)
end

local reply, refunds, not_in_shadow = {}, {}, {}
for event_key in next_argument do
  local event = { event_key = event_key }
  local version, lease_end = next_argument(), tonumber(next_argument())
  event.cost = tonumber(next_argument())
  event.guarantee, event.path = tonumber(next_argument()), read_path(next_argument, buckets)
  event.shadow_guarantee, event.shadow = tonumber(next_argument()), read_path(next_argument, buckets)
  event.name, event.message = log_name(event_key, version), message_name(event_key, version)
  event.other = event.message
  local current = redis.call('ZSCORE', keys.leased, event_key)
  local held = current and math.ceil(tonumber(current)) == lease_end -- see lib/doubt.lua
  held = held or current and lease_end == UNHELD and is_left(event_key, version, tonumber(current))
  if held then
    local at, timed = string.match(redis.call('HGET', keys.taken, event_key) or '', '^(%d+) ([%x ]+)$')
    event.taken, event.timed = tonumber(at), timed
    event.taken_in_shadow = tonumber(redis.call('ZSCORE', shadow_taken_key, event.message))
    refunds[#refunds + 1] = event
  end
  reply[#reply + 1] = held and 1 or 0
end

if #refunds == 0 then
  return reply
end

-- A bucket that needs the time of admission returns slots only if it counted the event. In the shadow, all buckets did.
local function gave(bucket, event)
  return event.taken and (not event.timed or string.find(event.timed, name_of(bucket), 1, true))
end

local function give_back(event, path)
  for _, bucket in ipairs(path) do
    if not bucket.algorithm.times_admissions or gave(bucket, event) then
      bucket.algorithm.give_back(bucket, event)
      bucket.changed = true
    end
  end
end

check_rights(keys.leased, lease + retention)
forget(keys, now, retention)
for _, event in ipairs(refunds) do
  redis.call('ZREM', keys.leased, event.event_key, doubt_of(event.event_key))
  redis.call('ZREM', keys.message, event.event_key)
  redis.call('HDEL', keys.taken, event.event_key)
  give_back(event, event.path)
  if event.taken_in_shadow then
    event.taken, event.timed, event.guarantee = event.taken_in_shadow, nil, event.shadow_guarantee
    event.name, event.other = event.message, event.message .. '\n' .. integer(event.taken)
    give_back(event, event.shadow)
    not_in_shadow[#not_in_shadow + 1] = event.message
  end
end
in_pieces('ZREM', shadow_taken_key, not_in_shadow)
write_changed(buckets)
return reply
