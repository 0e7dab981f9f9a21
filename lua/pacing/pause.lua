-- pause.lua: pauses a channel, for all instances. A longer pause in force stays. No burst follows a pause.
--
-- KEYS
--   1   calls   sorted set: nonce of a call that granted something -> its time
--   2   pauses  sorted set: channel -> end of its pause
--   3   paces   sorted set: channel -> its TAT (see pace.lua)
--
-- ARGV
--   channel, duration, how far the TAT may run ahead of the time (see pace.lua; both microseconds)
--
-- Returns the end of the pause.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

--@include lib/records lib/destinations

local calls_key, pauses_key, paces_key = KEYS[1], KEYS[2], KEYS[3]
local destination, duration, tolerance = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local now = deployment_time(calls_key)
local pause_end = now + duration
local current = tonumber(redis.call('ZSCORE', pauses_key, destination) or 0)
if current > pause_end and current <= now + MOST_AHEAD then
  return current
end
local tat = math.max(tonumber(redis.call('ZSCORE', paces_key, destination) or 0), pause_end + tolerance)

local trim = new_trimmer()
check_rights(pauses_key, duration)
if tolerance > 0 then
  check_rights(paces_key, duration + tolerance)
  record_time(trim, paces_key, destination, tat, now)
end
record_time(trim, pauses_key, destination, pause_end, now)
return pause_end
