-- extend.lua: renews the leases that the caller still holds, or ends them.
--
-- KEYS
--   1  calls    sorted set: call that granted something -> its time
--   2  leased   sorted set: record -> end of its lease (see parts/doubt.lua)
--   3… meters   see read_meters: those that follow deliveries
--
-- ARGV
--   duration (microseconds; 0 releases: the event may be taken over at once), lease, retention (both microseconds)
--   meters (see read_meters)
--   for each event: record, stamp, the end of the lease as the caller knows it, whether the event is in doubt ("1" or "0"),
--   cost, path (see read_path), path in the shadow
--
-- Returns the new end, then 1 or 0 for each event: 0 if the lease is no longer the caller's. Until the end that the
-- caller knows, nobody else can have it: a later end is of this very call, which is repeated because its reply was lost.

local calls_key, leased_key = KEYS[1], KEYS[2]
local next_argument = reader(ARGV, 0)
local next_key = reader(KEYS, 2)
local duration, lease, retention = tonumber(next_argument()), tonumber(next_argument()), tonumber(next_argument())

local now = deployment_time(calls_key)
local meters = read_meters(next_argument, next_key, now, lease)
for _, meter in ipairs(meters) do
  read_once(meter)
end

local lease_end = integer(now + duration)
local reply, renewed, held_events = { now + duration }, {}, {}
for record in next_argument do
  local event = { record = record }
  event.message = message_name(record, next_argument())
  local known, in_doubt = tonumber(next_argument()), next_argument() == '1'
  event.cost = tonumber(next_argument())
  event.path, event.shadow = read_path(next_argument, meters), read_path(next_argument, meters)
  local current = redis.call('ZSCORE', leased_key, record)
  current = current and tonumber(current)
  local is_released = current and current % 1 ~= 0 -- see parts/doubt.lua
  local held = current and not is_released and (current == known or current > known and known > now)
  if held and duration > 0 and resume(event, event.path) then
    held = false -- others have the slots that it has lost
  end
  if held then
    renewed[#renewed + 1] = duration > 0 and lease_end or released(now, in_doubt)
    renewed[#renewed + 1] = record
    if duration > 0 and in_doubt then
      renewed[#renewed + 1] = lease_end
      renewed[#renewed + 1] = doubt_of(record)
    end
    held_events[#held_events + 1] = event
  end
  reply[#reply + 1] = held and 1 or 0
end

if #renewed == 0 then
  return reply
end
check_rights(leased_key, lease + retention)
in_pieces('ZADD', leased_key, renewed)
redis.call('PEXPIRE', leased_key, milliseconds(lease + retention))
for _, event in ipairs(held_events) do
  for _, meter in ipairs(duration > 0 and {} or event.path) do
    meter.algorithm.give_back(meter, event)
  end
  for _, meter in ipairs(event.shadow) do
    if duration > 0 then
      meter.algorithm.extend(meter, event)
    else
      meter.algorithm.give_back(meter, event)
    end
  end
end
local trim = new_trimmer()
for _, meter in ipairs(meters) do
  if meter.changed then
    meter.algorithm.trim(meter, trim)
    meter.algorithm.write(meter)
  end
end
return reply
