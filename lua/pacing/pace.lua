-- pace.lua: reserves the next slot time of a channel, for all instances.
--
-- Slot times follow GCRA: they are one interval apart, after a burst if the channel was idle, and none lies in a pause. The
-- state of a channel is its theoretical arrival time (TAT), the end of all reserved intervals.
--
-- KEYS
--   1   calls   sorted set: nonce of a call that granted something -> its time
--   2   pauses  sorted set: channel -> end of its pause
--   3   paces   sorted set: channel -> its TAT
--
-- ARGV
--   channel, interval, burst, longest wait, remaining pause of the channel known to the caller
--     times in microseconds; an interval of 0 spaces nothing; a slot time beyond the longest wait is not reserved
--
-- Returns the time until the slot time (microseconds), and 1 if it is reserved, otherwise 0.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

--@include lib/records lib/destinations

local calls_key, pauses_key, paces_key = KEYS[1], KEYS[2], KEYS[3]
local destination, interval, burst = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local max_wait, known_pause = tonumber(ARGV[4]), tonumber(ARGV[5])
local tolerance = (burst - 1) * interval -- how far the TAT may run ahead of the time: the burst

-- A time further ahead is ignored.
local farthest = MOST_AHEAD + tolerance + interval

local now = deployment_time(calls_key)
local function recorded(key)
  local time = tonumber(redis.call('ZSCORE', key, destination) or 0)
  return time <= now + farthest and time or 0
end
local pause_end, tat = math.max(recorded(pauses_key), now + known_pause), recorded(paces_key)
if pause_end > now then
  tat = math.max(tat, pause_end + tolerance) -- no burst follows a pause
end
local slot_time = math.max(now, pause_end)
if interval > 0 then
  slot_time = math.max(slot_time, tat - tolerance)
end
local wait = slot_time - now
if wait > max_wait then
  return { wait, 0 }
end
if interval > 0 then
  check_rights(paces_key, farthest)
  record_time(new_trimmer(), paces_key, destination, math.max(tat, slot_time) + interval, now)
end
return { wait, 1 }
