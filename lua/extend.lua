-- extend.lua: renews the leases that the caller still holds or releases them.
--
-- No other caller can get the lease before the end that the caller knows. A later end was recorded by an earlier run of this very
-- call, which is repeated because its reply was lost. If it is the end of a lease whose holder delivers the event, a call of a holder
-- that waited is late, and changes nothing.
--
-- KEYS
--   1   calls   sorted set: nonce of a call that granted something -> its time
--   2   leased  sorted set: event key -> end of the lease (see lib/doubt.lua)
--   3…  the buckets that follow deliveries, see read_buckets
--
-- ARGV
--   duration (microseconds; 0 releases: another caller may reclaim the event at once), lease, retention (both microseconds), "1" if denied
--   events are forwarded: an event that has lost its slots goes on
--   buckets (see read_buckets)
--   for each event: event key, version, the end of the lease known to the caller, whether the event is in doubt and whether the
--   caller waits before it delivers the event ("1" or "0"), cost, path (see read_path), path in the shadow
--
-- Returns the new end, then 1 or 0 for each event: 0 if the caller no longer holds the lease.
--
-- Errors: WRONGTYPE is raised before anything is written.

--@include lib/buckets algorithms lib/records lib/doubt

local calls_key, leased_key = KEYS[1], KEYS[2]
local next_argument = reader(ARGV, 0)
local next_key = reader(KEYS, 2)
local duration, lease, retention = tonumber(next_argument()), tonumber(next_argument()), tonumber(next_argument())
local forward = next_argument() == '1'

local now = deployment_time(calls_key)
local buckets = read_buckets(next_argument, next_key, now, lease)
read_all(buckets)

local reply, renewed, held_events = { now + duration }, {}, {}
for event_key in next_argument do
  local event = { event_key = event_key }
  event.message = message_name(event_key, next_argument())
  local known, in_doubt, waits = tonumber(next_argument()), next_argument() == '1', next_argument() == '1'
  event.cost = tonumber(next_argument())
  event.path, event.shadow = read_path(next_argument, buckets), read_path(next_argument, buckets)
  local current = redis.call('ZSCORE', leased_key, event_key)
  current = current and tonumber(current)
  local current_end = current and math.ceil(current) -- see lib/doubt.lua
  local has_begun = current == current_end
  local held = current and (current_end == known or current_end > known and known > now and not (waits and has_begun))
  if held and duration > 0 and resume(event, event.path) and not forward then
    held = false -- the event has lost slots, and others have taken them
  end
  if held then
    if duration > 0 then
      renewed[#renewed + 1] = lease_score(now + duration, waits)
    else -- no caller knows the end of a lease that was released without doubt
      renewed[#renewed + 1] = in_doubt and integer(now) or lease_score(now - 1, true)
    end
    renewed[#renewed + 1] = event_key
    -- The mark of a lease that is released after its end would lie before that.
    if duration > 0 and in_doubt or duration == 0 and mark_of(leased_key, event_key) >= current then
      renewed[#renewed + 1] = integer(now + duration)
      renewed[#renewed + 1] = doubt_of(event_key)
    end
    held_events[#held_events + 1] = event
  end
  reply[#reply + 1] = held and 1 or 0
end

if #renewed == 0 then
  return reply
end
check_rights(leased_key, lease + retention)
add_and_keep(leased_key, renewed, lease + retention)
for _, event in ipairs(held_events) do
  for _, bucket in ipairs(duration > 0 and {} or event.path) do
    bucket.algorithm.give_back(bucket, event)
  end
  for _, bucket in ipairs(event.shadow) do
    if duration > 0 then
      bucket.algorithm.extend(bucket, event)
    else
      bucket.algorithm.give_back(bucket, event)
    end
  end
end
local trim = new_trimmer()
for _, bucket in ipairs(buckets) do
  if bucket.changed then
    bucket.algorithm.trim(bucket, trim)
    bucket.algorithm.write(bucket)
  end
end
return reply
